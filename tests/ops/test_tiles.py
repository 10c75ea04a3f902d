"""Tables of tiles: what is kept is read again, anything else is refused in one line that names the field, and
the fastest tiles of a bench make a table."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.errors import GlassloopError
from glassloop.ops.torch.tiles import ANY, H200, Table, Tile, TileTable, read_table, table_text

SHARED = 232_448


def test_a_table_is_read_as_it_was_kept():
    assert read_table(table_text(H200), SHARED) == H200


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("plain",), 3, "plain has to be a list of pairs"),
        (("plain",), [], "the limits of plain have to ascend"),
        (("plain", 0, 0), 10**9, "the limits of plain have to ascend"),
        (("plain", 0, 0), True, "the limits of plain have to ascend"),
        (("plain", -1, 0), 512, "the limits of plain have to ascend to"),
        (("wide", 0, 1, 1, 1), [1, 2], "wide[0][1] has to be a list of rows, width, step"),
        (("plain", 0, 1, 0, 1, 2), 3, "plain[0][0].step is 3; one of 32, 64, 128, 256, 512 is expected"),
        (("plain", 0, 1, 0, 1, 3), 1, "plain[0][0].swapped is 1; one of False, True is expected"),
        (("gated", 0, 1, 0, 1, 4), True, "gated[0][0].warps is True; one of 1, 2, 4, 8 is expected"),
        (("gated", 0, 1, 0, 1, 5), [[]], "gated[0][0].stages is [[]]"),
    ],
)
def test_another_table_is_refused(path, value, said):
    table = json.loads(table_text(H200))
    place = table
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(GlassloopError) as error:
        read_table(json.dumps(table), SHARED)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_tile_that_does_not_fit_is_refused():
    large = ((ANY, ((ANY, Tile(256, 256, 512, False, 8, 1)),)),)
    for table in (H200._replace(plain=large), H200._replace(gated=large)):
        with pytest.raises(GlassloopError, match=r"\[0\]\[0\] does not fit into 232448 bytes"):
            read_table(table_text(table), SHARED)


def test_endless_lists_are_refused():
    with pytest.raises(GlassloopError, match="the table of tiles is not JSON"):
        read_table("[" * 100_000, SHARED)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_anything_else_is_refused(text):
    with pytest.raises(GlassloopError, match="the table of tiles"):
        read_table(text, SHARED)


def test_tiles_come_from_the_table():
    small = Tile(16, 16, 32, False, 1, 2)
    only = ((ANY, ((ANY, small),)),)
    tiles = TileTable(Table(only, only, only))
    assert tiles.plain(1, 4096, SHARED) == small == tiles.wide(300, 4096, False, SHARED)
    assert tiles.sliced(300, 4096, SHARED) == small
    assert TileTable(H200).plain(1, 4096, SHARED) != small


needs_triton = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("triton") is None, reason="needs torch and Triton"
)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A device that says it is a GPU, with Triton's cache in an empty folder."""
    import torch

    from glassloop.ops.torch.device import Device

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "one")

    def make() -> Device:
        device = Device(torch.device("cuda"))
        device.description, device.shared_memory = "sm_90/triton-3", SHARED
        return device

    return make


@needs_triton
def test_what_is_kept_for_a_gpu_is_read_there_alone(gpu, tmp_path, monkeypatch):
    import torch

    device = gpu()
    assert device.remembered("name", ["driver"]) is None
    assert device.remember("name", "text", ["driver"])
    assert device.remembered("name", ["driver"]) == "text"
    assert device.remembered("name", ["another driver"]) is None
    (file,) = tmp_path.rglob("name")
    for bad in (b"\xff", b"x" * 100_000):  # not text, too long
        file.write_bytes(bad)
        assert device.remembered("name", ["driver"]) is None
    file.write_bytes(b"text")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "two")
    assert device.remembered("name", ["driver"]) is None


@needs_triton
def test_a_kept_table_is_used_unless_it_is_damaged(gpu, caplog):
    only = ((ANY, ((ANY, Tile(16, 16, 32, False, 1, 2)),)),)
    assert gpu().remember_tiles(Table(only, only, only))
    assert gpu().tiles.table == Table(only, only, only)
    assert gpu().remember("glassloop-tiles", "[")
    assert gpu().tiles.table == H200
    assert "the tiles of an H200 are used: the table of tiles is not JSON" in caplog.text


@needs_triton
def test_the_fastest_tiles_of_all_products_make_a_table():
    from bench.gpu.tiles import Product, fastest

    slow, fast, partly = (Tile(16, 16, step, False, 2, 2) for step in (64, 128, 256))
    o, down = Product(1, "o", 4096, 4096, False), Product(1, "down", 4096, 14336, False)
    gate = Product(2048, "gate-up", 14336, 4096, True)
    timings = {(o, slow): 3.0, (o, fast): 2.0, (down, slow): 2.0, (down, fast): 2.5}
    timings |= {(o, partly): 0.1}  # it did not fit the other product
    timings |= {(gate, slow): 1.0, (gate, fast): 2.0}
    table = fastest(timings, has_descriptors=True)
    assert read_table(table_text(table), SHARED) == table
    assert dict(table.plain[0][1]) == {**dict(H200.plain[0][1]), 5120: fast}
    assert table.plain[1:] == H200.plain[1:] and table.wide == H200.wide
    assert dict(dict(table.gated)[ANY])[ANY] == slow
    plain = dict(dict(fastest(timings, has_descriptors=False).plain)[ANY])
    assert plain[ANY] == slow
