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

import numpy as np
from hostile import folders, gguf, glass, quantized, templates
from hostile.tiny import tiny_folder, tiny_gguf, write_tiny
from hostile.typed import mutated_types

from glassloop import LLM, Run, Sampling
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.quantized import read_weights
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.native.packer import NativeMatrix
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


# ── number formats: the same files with matrices of every type, read by the native op set ──────────────────


def _make_typed(rng: Random, folder: Path) -> bytes:
    return mutated_types(rng)


def _use_typed(data: bytes, folder: Path) -> str:
    path = folder / "typed.gguf"
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    path.write_bytes(data)
    try:
        files = ModelFiles(path)
        model = files.transformer(NativeOps())
    except GlassloopError as error:
        return _refusal(error)
    ids = [token % files.config.vocab_size for token in (0, 7, 260)]
    with np.errstate(all="ignore"):
        Branches(model, len(ids)).forward([(0, 0, ids)])
    return "used"


def _make_quantized(rng: Random, folder: Path) -> tuple[str, bytes, Any]:
    scheme = rng.choice(list(quantized.SCHEMES))
    return scheme, *quantized.mutated(scheme, rng)


def _use_quantized(made: tuple[str, bytes, Any], folder: Path) -> str:
    scheme, data, options = made
    file = folder / "model.safetensors"
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    key = "quantization" if scheme == "mlx" else "quantization_config"
    ops = NativeOps()
    try:
        tensors = read_weights(folder, {"torch_dtype": "bfloat16", key: options}).tensors.values()
        matrices = [ops.matrix(tensor) for tensor in tensors if len(tensor.shape) == 2]
    except GlassloopError as error:
        return _refusal(error)
    for matrix in matrices:
        _multiply(ops, matrix)
    return "used"


def _multiply(ops: NativeOps, matrix: NativeMatrix) -> None:
    """Multiplies a few rows of a matrix by itself."""

    def compute(batch: Batch, pages: Any) -> Any:
        rows = ops.take(ops.embed(matrix, batch.tokens), batch.wanted)
        return ops.linear(ops.scale(rows, 1.0), matrix, None)

    count = min(3, matrix.out)
    batch = Batch.of([(np.zeros((1, 4), np.int32), 0, list(range(count)))], [count])
    ops.program(compute)(batch, ops.cache([CacheSpec(1, 1, 8)], 1 << 20))


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
    "typed": Kind(_make_typed, _use_typed),
    "quantized": Kind(_make_quantized, _use_quantized),
    "template": Kind(_make_template, _use_template),
}


def make(kind: str, seed: int, number: int, folder: Path) -> Any:
    """The input with this number; the same seed and number make the same one."""
    return KINDS[kind].make(Random(f"{seed} {kind} {number}"), folder)
