"""A `.glass` file is untrusted input: either it can be used in every way, or it is refused with one line, and
neither costs more than the limits allow."""

from __future__ import annotations

import json
import os
import tracemalloc
from random import Random

import numpy as np
import pytest
from engine.random_runs import PROMPT, random_run, small_llm
from hostile import glass
from hostile.glass import Section, with_headers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Run, Sampling, TraceError
from glassloop.record.format.check_header import read_header
from glassloop.record.format.file_limits import FileLimits
from glassloop.record.format.glass_file import from_bytes, read, to_bytes


def made() -> list[bytes]:
    """Files of every kind: samples with a fork, a beam search, any options."""
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=1, n=2, max_tokens=8, prompt_logprobs=2, ignore_eos=True))
    beams = llm.generate(PROMPT, Sampling(beam_width=3, n=2, max_tokens=5))
    return [
        to_bytes([run, run.samples[1], run.fork(3, n=1, token=101)]),
        to_bytes([beams]),
        *(to_bytes([random_run(np.random.default_rng(seed))]) for seed in range(3)),
    ]


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return made()


@pytest.fixture(scope="module")
def header(files) -> dict:
    return glass.read(files[0])[0].header


def use(runs: list[Run]) -> None:
    """Does all that can be done with a run without its model."""
    for run in runs:
        assert isinstance(run.text, str) and run.usage.prompt_tokens > 0 and run.logprob <= 1
        for plain in (run.to_dict(), run.tree().to_dict()):
            json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
        assert str(run.tree()) and repr(run) and run in run.tree() and len(run.tree()) <= len(runs)
        assert run.drawn_with(0)
    again = from_bytes(to_bytes([runs[0]]))
    assert again[0].to_dict() == runs[0].to_dict()


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 2**64), st.integers(0, 4))
def test_any_file_is_refused_in_one_line_or_can_be_used(files, seed, which):
    data = glass.mutated(files[which], Random(seed))
    try:
        runs = from_bytes(data)
    except TraceError as error:
        assert str(error).isprintable() and len(str(error)) < 1000
        return
    use(runs)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**64))
def test_mutations_reach_behind_the_checksums(files, seed):
    try:
        from_bytes(glass.resealed(files[0], Random(seed)))
    except TraceError as error:
        assert "damaged" not in str(error) and "cut off" not in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "../../x"),
        ("id", 'a"\r\nX-Evil: 1'),
        ("id", "driveby"),
        ("parent", "x" * 16),
        ("samples", ["0123456789abcdef"] * 2),
        ("prompt_ids", []),
        ("prompt_ids", [-5]),
        ("prompt_ids", [1 << 31]),
        ("prompt_ids", [1.5]),
        ("prompt_ids", "abc"),
        ("prompt_ids", None),
        ("prompt_ids", [True]),
        ("prompt", 5),
        ("context", "x"),
        ("tail", None),
        ("timings", []),
        ("timings", {"queue": 0, "prefill": 0, "decode": 1e-320, "preempted": 0}),
        ("created", 1e30),
        ("seed", 1 << 64),
        ("sampling", {"temperature": "hot"}),
        ("sampling", {"temperature": 10**400}),
        ("sampling", {"x" * 10**6: 1}),
        ("sampling", {"logit_bias": {"\n\x1b[2J" * 10**5: 1}}),
        ("past", [{"until": 1}]),
        ("revised", -1),
        ("revised", None),
        ("moves", [[1, "a", "b"]]),
        ("moves", [[-1, "a", "b", "died"]]),
        ("moves", [[0, "a", "b", "died"]] * 5000),
        ("plugins", {"a": {"file": "../a.py", "sha256": "0" * 64}}),
        ("plugins", {"a": {"file": "\x1b[2J", "sha256": "0" * 64}}),
        ("plugins", {"a": {"file": "a.py", "sha256": "0"}}),
        ("plugins", {"x" * 5000: {"file": "a.py", "sha256": "0" * 64}}),
        ("plugins", {str(place): {"file": "a.py", "sha256": "0" * 64} for place in range(1025)}),
        ("sampling", {"stage_options": {"a": {"b": {"c": 1}}}}),
        ("refused", [[99, 1, "a", "model", 0]]),
        ("beams", [[0, 5, 1, -1.0, "live"]]),
        ("beams", [[0, 0, 1, -1.0, "live"]]),
        ("forks", {"-1": 1}),
        ("model_hash", "\x1b[2J"),
        ("columns", []),
        ("prompt_records", 1 << 30),
        ("something", "else"),
    ],
)
def test_the_error_names_the_field(files, header, field, value):
    with pytest.raises(TraceError, match=r"^the file is not a valid trace: ") as caught:
        from_bytes(with_headers(files[0], {**header, field: value}))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
    named = str(caught.value).removeprefix("the file is not a valid trace: ")
    known = {
        "sampling": "temperature|sampling|logit_bias|stage_options",
        "columns": "column",
        "prompt_records": "prompt_records",
    }
    assert any(word in named for word in known.get(field, field).split("|"))


def test_a_missing_field_is_named(files, header):
    for field in set(header) - {"refused", "plugins", "messages", "search", "revised", "moves", "adapters"}:
        less = {name: value for name, value in header.items() if name != field}
        with pytest.raises(TraceError, match=f"{field} is missing"):
            from_bytes(with_headers(files[0], less))


def test_runs_that_descend_from_themselves_or_are_there_twice_are_refused(files, header):
    other = "f" * 16
    with pytest.raises(TraceError, match="parent leads from a run back to itself"):
        from_bytes(with_headers(files[0], {**header, "parent": header["id"]}))
    pair = ({**header, "parent": other}, {**header, "id": other, "parent": header["id"]})
    with pytest.raises(TraceError, match="parent leads from a run back to itself"):
        from_bytes(with_headers(files[0], *pair))
    with pytest.raises(TraceError, match="two runs have the same id"):
        from_bytes(with_headers(files[0], header, header))


def test_a_long_line_of_forks_is_drawn_and_written(files, header):
    ids = [f"{number:016x}" for number in range(1500)]
    chain = [
        {**header, "id": own, "parent": above, "fork_at": 0, "reason": "sampled", "samples": []}
        for own, above in zip(ids, [None, *ids], strict=False)
    ]
    runs = from_bytes(with_headers(files[0], *chain))
    assert len(str(runs[0].tree()).split("\n")) == len(runs[0].tree()) == 1500
    assert json.dumps(runs[0].tree().to_dict()).count('"children"') == 1500


def test_lone_surrogates_become_characters(files, header):
    odd = {**header, "prompt": "a\ud800b", "model": "x\udcff", "tail": "\udfff"}
    (run,) = from_bytes(with_headers(files[0], odd))
    assert (run.prompt, run.model, run.tail) == ("a\ufffdb", "x\ufffd", "\ufffd")
    use([run])


@pytest.mark.parametrize(
    "make",
    [
        lambda: b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",
        lambda: b'{"prompt":"' + b" " * 500_000_000 + b'"}',
        lambda: b"[" * 1_000_000,
        lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=["lists", "spaces", "brackets", "objects"],
)
def test_a_bomb_costs_little(files, make):
    bomb = glass.write([Section(make(), b"")])
    tracemalloc.start()
    with pytest.raises(TraceError):
        from_bytes(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150 << 20


def test_columns_are_not_inflated_beyond_what_their_records_allow(files, header):
    plan = [[name, kind, size] for name, kind, size in header["columns"]]
    for name in ("ids", "text", "pieces", "odd_raw"):
        large = [[each, kind, (1 << 30) if each == name else size] for each, kind, size in plan]
        with pytest.raises(TraceError, match=r"columns have .* bytes; at most"):
            from_bytes(with_headers(files[0], {**header, "columns": large}))
    more = [[name, kind, size + 1 if name == "text" else size] for name, kind, size in plan]
    with pytest.raises(TraceError, match="does not hold"):
        from_bytes(with_headers(files[0], {**header, "columns": more}))


def test_all_runs_of_a_file_share_one_limit(files):
    small = FileLimits(total=20_000)
    assert len(from_bytes(files[0])) == 3 and len(from_bytes(files[0], only_first=True)) == 1
    with pytest.raises(TraceError, match="at most"):
        from_bytes(files[0], limits=small)
    assert len(from_bytes(files[0], limits=small, only_first=True)) == 1


def test_what_could_not_be_read_is_not_written():
    run = small_llm().generate(PROMPT, Sampling(max_tokens=2))
    run.prompt = "x" * (9 << 20)
    with pytest.raises(TraceError, match="at most 8388608 can be read back"):
        to_bytes([run])


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 10 << 30)
    for path, why in (
        (tmp_path / "pipe", "it is a pipe or a device"),
        ("/dev/zero", "it is a pipe or a device"),
        (tmp_path, "it is a folder"),
        (tmp_path / "large", "is longer than 268435456 bytes"),
        ("a\0b", "null"),
    ):
        with pytest.raises(TraceError, match=why):
            read(path)


def test_a_name_that_comes_twice_is_refused(header):
    text = json.dumps(header)
    with pytest.raises(TraceError, match="a name comes twice"):
        read_header((text[:-1] + ', "id": "0123456789abcdef"}').encode())
    assert read_header(text.encode())["id"] == header["id"]
