"""Files and programs of strangers, by kind: how one is made from a seed, and what is done with it. Whatever
is in it, it is used or refused with one of the project's own errors in one line; anything else is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hostile import folders, gguf, glass, templates
from hostile.tiny import tiny_folder, tiny_gguf, write_tiny

from glassloop import LLM, Run, Sampling
from glassloop.errors import GlassloopError
from glassloop.record.format.glass_file import to_bytes
from glassloop.text.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "x <|im_start|> th"}, {"role": "assistant", "content": "the"}]
_SHORT = Sampling(max_tokens=3, seed=1)
_MEMORY = "1MB"
_ONE_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,4000}")


class Finding(Exception):
    """Something that must not happen, other than an exception of its own."""


def _refusal(error: GlassloopError) -> str:
    if not _ONE_LINE.fullmatch(str(error)):
        raise Finding(f"the error is not one line: {str(error)[:300]!r}") from error
    return "refused"


# ── .glass files ───────────────────────────────────────────────────────────────────────────────────────────


@cache
def _llm(folder: Path) -> LLM:
    return LLM(str(write_tiny(folder / "tiny.gguf")), kv_memory=_MEMORY)


@cache
def _good_runs(folder: Path) -> list[bytes]:
    """Files of several shapes: one run, samples, beams, prompt scores, a fork with its past."""
    llm = _llm(folder)
    plain = llm.generate("the sea", Sampling(max_tokens=5, seed=1))
    many = llm.generate("a", Sampling(max_tokens=4, seed=2, n=3, temperature=2.0))
    beams = llm.generate("b", Sampling(max_tokens=4, seed=3, beam_width=3, n=2))
    scored = llm.generate(
        "hello", Sampling(max_tokens=3, seed=4, prompt_logprobs=2, stop=["x"], logit_bias={5: 1.0})
    )
    fork = llm.fork(plain, 2, temperature=0.5)
    return [
        to_bytes(runs) for runs in ([plain], many.samples, beams.samples or [beams], [scored], [plain, fork])
    ]


def _make_glass(rng: Random, folder: Path) -> bytes:
    return glass.mutated(rng.choice(_good_runs(folder)), rng)


def _use_glass(data: bytes, folder: Path) -> str:
    path = folder / "hostile.glass"
    path.write_bytes(data)
    try:
        run = Run.load(path)
    except GlassloopError as error:
        return _refusal(error)
    llm = _llm(folder)
    uses: list[Callable[[], Any]] = [
        lambda: (run.text, run.to_dict(), str(run.tree()), len(run.tokens)),
        lambda: run.save(folder / "again.glass"),
        lambda: llm.explain(run, 0),
        lambda: llm.explain(run, 1, temperature=0.3),
        lambda: llm.replay(run, strict=False),
        lambda: llm.fork(run, 1, max_tokens=2, timeout=2.0),
        lambda: llm.lens.attention(run, -1).to_dict(None),
        lambda: llm.lens.layers(run, -1, 3).to_dict(),
    ]
    for use in uses:
        try:
            use()
        except GlassloopError as error:
            _refusal(error)
    return "used"


# ── models ─────────────────────────────────────────────────────────────────────────────────────────────────


def _use_model(path: Path) -> str:
    try:
        llm = LLM(str(path), kv_memory=_MEMORY)
    except GlassloopError as error:
        return _refusal(error)
    try:
        size = llm.config.vocab_size
        uses: list[Callable[[], Any]] = [
            lambda: llm.generate([size - 1, 0, size // 2, 7 % size], _SHORT),
            lambda: llm.generate("the sea x<|im_end|> é", _SHORT),
            lambda: llm.chat(MESSAGES, _SHORT),
            lambda: llm.tokenizer.decode(list(range(llm.tokenizer.vocab_size))),
        ]
        for use in uses:
            try:
                use()
            except GlassloopError as error:
                _refusal(error)
        return "used"
    finally:
        llm.close()


@cache
def _good_gguf(rich: bool) -> gguf.GGUF:
    return tiny_gguf(rich=rich)


@cache
def _good_folder(rich: bool) -> dict[str, bytes]:
    return tiny_folder(rich=rich)


def _make_gguf(rng: Random, folder: Path) -> bytes:
    return gguf.mutated(_good_gguf(rng.random() < 0.5), rng)


def _use_gguf(data: bytes, folder: Path) -> str:
    path = folder / "hostile.gguf"
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    path.write_bytes(data)
    return _use_model(path)


def _make_folder(rng: Random, folder: Path) -> dict[str, bytes]:
    return folders.mutated(_good_folder(rng.random() < 0.5), rng)


def _use_folder(files: dict[str, bytes], folder: Path) -> str:
    model = folder / "hostile"
    model.mkdir(exist_ok=True)
    for old in model.iterdir():
        old.unlink()
    for name, data in files.items():
        (model / name).write_bytes(data)
    return _use_model(model)


# ── templates ──────────────────────────────────────────────────────────────────────────────────────────────


def _make_template(rng: Random, folder: Path) -> str:
    return templates.program(rng)


def _use_template(source: str, folder: Path) -> str:
    try:
        ChatTemplate(source, name="template").render(MESSAGES)
    except GlassloopError as error:
        return _refusal(error)
    return "used"


class Kind(NamedTuple):
    make: Callable[[Random, Path], Any]
    use: Callable[[Any, Path], str]  # "used" or "refused"


KINDS = {
    "glass": Kind(_make_glass, _use_glass),
    "gguf": Kind(_make_gguf, _use_gguf),
    "safetensors": Kind(_make_folder, _use_folder),
    "template": Kind(_make_template, _use_template),
}


def make(kind: str, seed: int, number: int, folder: Path) -> Any:
    """The input with this number; the same seed and number make the same one."""
    return KINDS[kind].make(Random(f"{seed} {kind} {number}"), folder)
