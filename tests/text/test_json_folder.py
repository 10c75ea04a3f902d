"""What the files beside tokenizer.json say: which tokens stand around a text, and where it ends."""

from __future__ import annotations

import json
from pathlib import Path

from text.small import SPECIAL, byte_level, write_folder
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from glassloop.text.tokenizer import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"


def _with_bos() -> Backend:
    backend = Backend.from_str(byte_level("llama-bpe").to_str())
    backend.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, backend.token_to_id(START))]
    )
    return backend


def test_the_post_processor_adds_bos(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_json_folder(write_folder(tmp_path, _with_bos()))
    assert tokenizer.add_bos and tokenizer.piece(tokenizer.encode("a")[0]) == START
    assert tokenizer.encode("a", add_special=False) == tokenizer.encode("a")[1:]


def test_the_config_goes_before_the_post_processor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "no", _with_bos(), bos_token=START, add_bos_token=False)
    assert not Tokenizer.from_json_folder(folder).add_bos
    folder = write_folder(
        tmp_path / "yes", byte_level("gpt-2"), eos_token={"content": END}, add_eos_token=True
    )
    tokenizer = Tokenizer.from_json_folder(folder)
    assert tokenizer.add_eos and tokenizer.piece(tokenizer.encode("a")[-1]) == END


def test_ends_come_from_the_generation_config_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level("gpt-2"), eos_token=END)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    assert Tokenizer.from_json_folder(folder).eos_ids == (2, 0)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    assert Tokenizer.from_json_folder(folder).eos_ids == (2, 1)


def test_special_tokens_map_is_the_second_choice(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level("gpt-2"))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": END}}))
    assert [
        Tokenizer.from_json_folder(folder).piece(i) for i in Tokenizer.from_json_folder(folder).eos_ids
    ] == [END]


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    byte_level("gpt-2").save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_json_folder(tmp_path)
    assert tokenizer.bos_id is None and tokenizer.eos_ids == () and tokenizer.chat_template is None
    assert {tokenizer.piece(i) for i in tokenizer.special_ids} == {*SPECIAL}


def test_added_tokens_outside_the_model_keep_their_ids(tmp_path: Path) -> None:
    """Special and plain ones by turns, with ids past the model's own."""
    backend = Backend.from_str(byte_level("gpt-2").to_str())
    for i in range(6):
        (backend.add_special_tokens if i % 2 else backend.add_tokens)([f"<extra{i}>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_json_folder(tmp_path)
    text = "".join(f"x<extra{i}>" for i in range(6))
    parsed, plain = tokenizer.encode(text), tokenizer.encode(text, parse_special=False)
    found = [i for i in range(6) if tokenizer.id_of(f"<extra{i}>") in plain]
    assert all(tokenizer.id_of(f"<extra{i}>") in parsed for i in range(6)) and found == [0, 2, 4]
    assert tokenizer.decode(plain) == tokenizer.decode(parsed) == text
    assert backend.token_to_id("<extra5>") == tokenizer.id_of("<extra5>")
