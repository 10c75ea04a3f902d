"""GGUF in several files: opened by any part, and refused if a part is missing, mixed up or damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hostile.gguf import GGUF, Entry, metadata
from hostile.tiny import tiny_gguf

from glassloop.errors import ModelError
from glassloop.model.fingerprint import fingerprint
from glassloop.model.gguf_parts import part_paths
from glassloop.model.loader import ModelFiles, load_tokenizer
from glassloop.model.survey import survey

_U16, _I32 = 2, 5


def _split(folder: Path, cuts: tuple[int, ...], whole: GGUF | None = None, name: str = "tiny") -> list[Path]:
    """Writes a model as llama.cpp's gguf-split does: metadata in the first part, tensors cut at `cuts`."""
    whole = whole or tiny_gguf()
    bounds = (0, *cuts, len(whole.tensors))
    count = len(bounds) - 1
    paths = []
    for number in range(count):
        own = (
            Entry("split.no", _U16, number),
            Entry("split.count", _U16, count),
            Entry("split.tensors.count", _I32, len(whole.tensors)),
        )
        part = GGUF(
            (*(whole.entries if number == 0 else ()), *own),
            whole.tensors[bounds[number] : bounds[number + 1]],
        )
        paths.append(folder / f"{name}-{number + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(part.to_bytes())
    return paths


@pytest.mark.parametrize("cuts", [(3,), (0,), (0, 4), (1, 2, 5, 5)])
def test_any_part_opens_the_whole_model(tmp_path, cuts):
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(tiny_gguf().to_bytes())
    expected = ModelFiles(whole)
    paths = _split(tmp_path, cuts)
    assert len({fingerprint(path) for path in paths}) == 1
    for path in paths:
        files = ModelFiles(path)
        assert files.config == expected.config
        assert {name: t.data.tobytes() for name, t in files.weights.items()} == {
            name: t.data.tobytes() for name, t in expected.weights.items()
        }
        assert files.tokenizer().encode("hello") == expected.tokenizer().encode("hello")
        assert load_tokenizer(str(path)).encode("hello") == expected.tokenizer().encode("hello")
    assert survey(paths[-1]).files == len(paths)
    assert survey(paths[-1]).types == survey(whole).types


def _refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        ModelFiles(path)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    return message


def test_missing_parts_are_named(tmp_path):
    paths = _split(tmp_path, (2, 4))
    paths[1].unlink()
    assert "tiny-00002-of-00003.gguf of its 3 parts is missing" in _refused(paths[0])
    paths[2].unlink()
    assert "tiny-00002-of-00003.gguf and 1 more of its 3 parts are missing" in _refused(paths[0])


def test_parts_of_different_models_are_refused(tmp_path):
    paths = _split(tmp_path, (2, 4))
    (tmp_path / "other").mkdir()
    file = tiny_gguf()
    other = _split(tmp_path / "other", (3, 4), replace(file, tensors=file.tensors[:-1]))
    paths[2].write_bytes(other[2].read_bytes())
    assert "split.tensors.count is" in _refused(paths[0])
    paths = _split(tmp_path, (2, 4))
    paths[1].write_bytes(paths[2].read_bytes())
    message = _refused(paths[0])
    assert "00002-of-00003.gguf: split.no is 2 where 1 is expected" in message or "split.tensors" in message


def test_a_part_with_a_plain_name_says_which_name_it_needs(tmp_path):
    path = tmp_path / "renamed.gguf"
    path.write_bytes(_split(tmp_path, (2,))[0].read_bytes())
    assert "split.count is 2" in _refused(path) and "NAME-00001-of-00002.gguf" in _refused(path)


def test_a_plain_file_with_the_name_of_a_part_is_refused(tmp_path):
    for number in (1, 2):
        (tmp_path / f"a-0000{number}-of-00002.gguf").write_bytes(tiny_gguf().to_bytes())
    assert "split.count is None where 2 is expected" in _refused(tmp_path / "a-00001-of-00002.gguf")


def test_the_same_tensor_in_two_parts_is_refused(tmp_path):
    file = tiny_gguf()
    doubled = replace(file, tensors=(*file.tensors[:-1], file.tensors[0]))
    assert "is in another part too" in _refused(_split(tmp_path, (2,), doubled)[0])


@pytest.mark.parametrize("name", ["a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-00001-of-99999.gguf"])
def test_names_that_cannot_be_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="its name says part"):
        part_paths(tmp_path / name)


def test_a_value_of_the_wrong_type_is_refused(tmp_path):
    paths = _split(tmp_path, (2,))
    file = tiny_gguf()
    strange = metadata({"split.no": "1", "split.count": 2, "split.tensors.count": len(file.tensors)})
    paths[1].write_bytes(GGUF(strange, file.tensors[2:]).to_bytes())
    assert "split.no is '1' where 1 is expected" in _refused(paths[0])
