"""Small models through the torch op set's kernels, run on the CPU by Triton's interpreter, against the
reference. `test_torch.py` runs this as a program, since TRITON_INTERPRET is read when Triton is imported.

The interpreter takes milliseconds for each program of a kernel: models and batches are tiny.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from traceback import format_exc
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import torch
import triton
import triton.language as tl
from ops.bad_numbers import _spoil
from ops.device_choices import choose_on_device, differences, predictions
from ops.fused import fused
from ops.holes import Hole, hole_alone, hole_logits
from ops.random_adapters import random_adapter
from ops.random_choices import random_cuts, random_lines, random_rows
from ops.random_models import random_tensor
from ops.torch_compiled import stack_bytes
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from glassloop.decode.chosen import Chosen, record_with
from glassloop.decode.luck import branch_key
from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.lens import Lens
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops import choose_ops
from glassloop.ops.batch import PAGE, Batch, BatchError
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.memory import format_bytes
from glassloop.ops.native import chooser as native_chooser
from glassloop.ops.quant import BF16, F8_E4M3, FORMATS, Float32, factors, quantize
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Computed, Tensor
from glassloop.ops.torch import chooser as device_chooser
from glassloop.ops.torch import launcher as torch_launcher
from glassloop.ops.torch import nvrtc, packed_linear, row_tiles
from glassloop.ops.torch.chooser import DeviceChooser
from glassloop.ops.torch.device import Device, default_device
from glassloop.ops.torch.device_rows import DeviceRows
from glassloop.ops.torch.kernels import linear, racing, survivors
from glassloop.ops.torch.kernels import packed as packed_kernels
from glassloop.ops.torch.launcher import _attention_keeps
from glassloop.ops.torch.matrix import MatrixProduct, TorchMatrix
from glassloop.ops.torch.ops import TorchOps
from glassloop.ops.torch.packed import Form, PackedMatrix, pack

CHOICE_WIDTHS = (50, 700, 4100)
DEVICE = default_device()
RMS, LAYER = NormConfig(1e-5), NormConfig(1e-5, "layer")


def config(
    norm: NormConfig = RMS, windows: tuple[int | None, ...] = (None,), place: Any = "pre", **options: Any
) -> ModelConfig:
    """A model of layers with these windows; `options` are those of any part of its config."""

    def part(kind: Any, **defaults: Any) -> Any:
        names = kind.__dataclass_fields__
        return kind(**defaults | {name: value for name, value in options.items() if name in names})

    mixer = part(AttentionConfig, heads=4, kv_heads=2, head_dim=16, scale=0.25, rope=Rope(10000.0, 16))
    feed_forward = part(DenseConfig, ffn_dim=24)
    layers = tuple(
        LayerConfig(replace(mixer, window=window), feed_forward, norm, place) for window in windows
    )
    return part(
        ModelConfig, family="tiny", vocab_size=50, dim=24, context=600, layers=layers, final_norm=norm
    )  # type: ignore[no-any-return]


# Every kind of part that the forward pass knows; each model has several that do not touch each other.
MODELS = {
    "plain": config(),
    "odd sizes": config(
        heads=3, kv_heads=1, head_dim=10, rope=Rope(10000.0, 6), dim=21, ffn_dim=37, scale=0.3
    ),
    "biases and layer norms": config(
        LAYER, qkv_bias=True, out_bias=True, bias=True, rope=None, positions="learned", gated=False,
        activation="gelu", tied=True,
    ),
    "norms of queries and keys": config(
        qk_norm=RMS, place="sandwich", activation="gelu_tanh", windows=(6, None)
    ),
    "layer norms of queries": config(LAYER, qk_norm=LAYER, place="post", activation="relu", bias=True),
    "caps": config(softcap=4.0, logit_softcap=7.0, embedding_scale=3.0, positions="sinusoidal", rope=None),
}  # fmt: skip


def models(config: ModelConfig, seed: int = 0) -> tuple[Transformer, Transformer]:
    """The same random weights on the reference and on the torch op set."""
    rng = np.random.default_rng(seed)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"]) for name, shape in config.shapes().items()
    }
    return Transformer(config, weights, ReferenceOps()), Transformer(config, weights, TorchOps())


def tokens(count: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, 50, count).tolist()
    return found


def close(found: Float32, expected: Float32, what: str) -> None:
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert found.shape == expected.shape and error < 1e-4, f"{what}: off by {error}"


def check_models() -> None:
    """Each model gives the reference's logits: for a prompt, one token each, a draft beside a prompt."""
    for name, config in MODELS.items():
        reference, model = models(config)
        work = [
            [(0, 0, tokens(9)), (1, 0, tokens(3, 1))],
            [(0, 9, tokens(1, 2)), (1, 3, tokens(1, 3))],
            [(0, 10, tokens(4, 4)), (1, 4, tokens(1, 5))],
        ]
        here, there = (Branches(model, 64, branches=2) for model in (reference, model))
        for step in work:
            close(there.forward(step, every_logit=True), here.forward(step, every_logit=True), name)
        # All rows of a prompt are computed and none is wanted, as in all chunks but the last.
        first = there.batch([(0, 14, tokens(2, 6))])._replace(wanted=[])
        assert model.forward(first, there.pages).shape == (0, 50)


def check_batches() -> None:
    """Other batches and chunks give the same logits, and forks read the pages that they share. (NumPy sums a
    tile of another size in another order; `tests/gpu` compares the bits.)"""
    _, model = models(config(heads=2, kv_heads=1))
    text = tokens(PAGE + 6)
    whole = Branches(model, 64).forward([(0, 0, text)], every_logit=True)
    parts = Branches(model, 64, branches=2)
    parts.forward([(0, 0, text[:PAGE]), (1, 0, tokens(7, 1))])
    rest = parts.forward([(1, 7, tokens(1, 2)), (0, PAGE, text[PAGE:])], every_logit=True)
    close(rest[1:], whole[PAGE:], "chunks")
    # Branch 2 shares the first page and has a copy of the second one.
    table = parts.batch([(0, 0, text)]).spans[0].pages
    fork = np.array([[table[0, 0], 3]], np.int32)
    parts.pages[0].copy(int(table[0, 1]), 3)
    batch = Batch.of([(fork, PAGE + 4, text[PAGE + 4 :])], [2])
    close(model.ops.host(model.forward(batch, parts.pages)), whole[-2:], "a fork")


def check_adapters() -> None:
    """Several adapters in one batch, on whole branches and on some rows, give the reference's logits; rows
    without one have the bits of a model without. A batch filled up to the size of a graph has the same bits.
    """
    for name, shape in MODELS.items():
        rng, (reference, model) = np.random.default_rng(7), models(shape)
        for _ in range(2):
            added = random_adapter(rng, shape)
            assert reference.load_adapter(added) == model.load_adapter(added)
        plain, here, there = (Branches(each, 64, branches=3) for each in (model, reference, model))
        prompt = [(0, 0, tokens(20)), (1, 0, tokens(3, 1)), (2, 0, tokens(2, 2))]
        numbers = [2] * 18 + [1, 0] + [0] * 3 + [1, 2]
        step = [(0, 20, tokens(1, 3)), (1, 3, tokens(1, 4)), (2, 2, tokens(1, 5))]
        close(there.forward(prompt, True, numbers), here.forward(prompt, True, numbers), name)
        plain.forward(prompt[1:2])
        alone = plain.forward(step[1:2])
        found = there.forward(step, True, [2, 0, 1])
        close(found, here.forward(step, True, [2, 0, 1]), f"{name}, one row each")
        assert found[1].tobytes() == alone.tobytes(), f"{name}: a row without adapter has changed"
        program: Any = model._program._adapted.__self__  # type: ignore[attr-defined]
        batch = there.batch(step)._replace(adapters=[2, 0, 1])
        program._numbers.upload(batch, there.pages, 4, program._head_counts)
        program._make_room(4, 4, 21, there.pages)
        program._compute(program._numbers.step(there.pages))
        assert program._buffers[program._results[0]][:3].numpy().tobytes() == found.tobytes(), name
    for wrong in ([0, 3, 0], [0, -1, 0], [1]):
        try:
            there.forward(step, True, wrong)
        except BatchError:
            continue
        raise AssertionError(f"adapters {wrong} were computed")


def check_units() -> None:
    """Attention by one program per unit gives the bits of one program for all units, with a window too."""
    for windows in ((None,), (20,)):
        reference, model = models(config(windows=windows, heads=2, kv_heads=1))
        text = tokens(44)
        expected = Branches(reference, 96).forward([(0, 0, text)], every_logit=True)
        found = []
        for programs in (0, 10**6):
            with (
                patch.multiple(row_tiles, UNIT=16, DIVIDED=programs),
                patch.multiple(torch_launcher, UNIT=16, BLOCK=16),
            ):
                cache = Branches(model, 96)
                rows = [cache.forward([(0, 0, text[:37])], every_logit=True)]
                rows += [cache.forward([(0, 37, text[37:41])], every_logit=True)]
                rows += [cache.forward([(0, at, text[at : at + 1])]) for at in range(41, 44)]
            found.append(np.concatenate(rows))
        close(found[0], expected, f"units with windows {windows}")
        assert found[0].tobytes() == found[1].tobytes(), f"splitting changes bits with windows {windows}"


def check_keeping() -> None:
    """Attention that rotates and keeps keys and values itself gives the bits of the kernel made for that."""
    for name in ("plain", "odd sizes", "biases and layer norms"):
        _, model = models(MODELS[name])
        text, found = tokens(20), []
        for keeps in (True, False):
            asked = Mock(side_effect=_attention_keeps) if keeps else Mock(return_value=False)
            with patch.object(torch_launcher, "_attention_keeps", asked):
                cache = Branches(model, 64, branches=3)
                cache.forward([(0, 0, text[:14]), (1, 0, text[:3]), (2, 0, text[:1])])
                rows = [cache.forward([(0, at, text[at : at + 1])]) for at in range(14, 18)]
                rows += [cache.forward([(0, 18, text[18:19]), (1, 3, text[3:4]), (2, 1, text[1:2])])]
            found.append(np.concatenate(rows))
            if keeps:
                kept = [_attention_keeps(*call.args) for call in asked.call_args_list]
                assert any(kept) and not all(kept)
        assert found[0].tobytes() == found[1].tobytes(), f"other bits: {name}"


def check_holes() -> None:
    """Masked rows see all of their branch, beside plain rows, as in the reference; their units have the same
    bits from one program or many."""
    for windows in ((None,), (20,)):
        reference, model = models(config(windows=windows, heads=2, kv_heads=1))
        hole = Hole(tokens(21), tokens(12, 1), tokens(6, 2))
        expected = hole_alone(reference, hole)
        found = []
        for programs in (0, 10**6):
            with (
                patch.multiple(row_tiles, UNIT=16, DIVIDED=programs),
                patch.multiple(torch_launcher, UNIT=16, BLOCK=16),
            ):
                cache = Branches(model, 96, branches=2)
                first = hole_logits(cache, model, [(0, hole, 0, 27)], [(1, 0, tokens(3, 4))])
                cache.forward([(1, 3, tokens(1, 5))])
                last = hole_logits(cache, model, [(0, hole, 27, 39)], [(1, 4, tokens(1, 6))])
                again = hole_logits(cache, model, [(0, hole, 33, 39)])
                close(again, last[6:12], "masks alone")
            found.append(np.concatenate([first[:27], last[:12]]))
        close(found[0], expected, f"a hole with windows {windows}")
        assert found[0].tobytes() == found[1].tobytes(), f"splitting changes bits with windows {windows}"
    _, model = models(config(heads=2, kv_heads=1))
    cache = Branches(model, 96)
    batch = cache.batch([(0, 0, tokens(9))], every_logit=True)
    plain = model.ops.host(model.forward(batch, cache.pages)).tobytes()
    causal = batch._replace(reach=[at + 1 for at in batch.positions])
    assert model.ops.host(model.forward(causal, cache.pages)).tobytes() == plain


def check_filled() -> None:
    """A batch filled up to the size of a graph gives the same bits, and its filling writes to no page."""
    _, model = models(config(windows=(None, 5)))
    text = tokens(6)
    expected = Branches(model, 32, branches=2)
    expected.forward([(0, 0, text[:5]), (1, 0, text[:2])])
    filled = Branches(model, 32, branches=2)
    filled.forward([(0, 0, text[:5]), (1, 0, text[:2])])
    step = [(0, 5, text[5:]), (1, 2, text[2:3])]
    program: Any = model._program.plain.__self__  # type: ignore[attr-defined]
    batch = filled.batch(step)
    units = program._numbers.upload(batch, filled.pages, 4, program._head_counts)
    assert units == (0,)
    program._make_room(4, 4, 6, filled.pages)
    program._compute(program._numbers.step(filled.pages))
    logits: Float32 = program._buffers[program._results[0]][:2].numpy()
    assert logits.tobytes() == expected.forward(step).tobytes()
    for own, other in zip(filled.pages, expected.pages, strict=True):
        assert own.keys[: own.count].equal(other.keys[: own.count])  # type: ignore[attr-defined]
        assert own.values[: own.count].equal(other.values[: own.count])  # type: ignore[attr-defined]


class RecordedGraph:
    """Takes the place of a CUDA graph: repeats the launches of its capture, with the same arguments."""

    capturing: RecordedGraph | None = None

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []
        self.replays = 0

    @staticmethod
    @contextmanager
    def capture(graph: RecordedGraph, **_: Any) -> Iterator[None]:
        RecordedGraph.capturing = graph
        yield
        RecordedGraph.capturing = None

    @staticmethod
    def launch(*arguments: Any, **settings: Any) -> None:
        run = partial(LAUNCH, *arguments, **settings)
        if RecordedGraph.capturing is None:
            run()
        else:
            RecordedGraph.capturing.launches.append(run)

    def replay(self) -> None:
        self.replays += 1
        for launch in self.launches:
            launch()


LAUNCH = torch_launcher.Launcher._launch


def check_graphs() -> None:
    """A graph computes every later batch of its size, and is captured again when what it uses has moved."""
    shape, text = config(windows=(None, 20), heads=2, kv_heads=1), tokens(40)
    (_, plain), (_, captured) = models(shape), models(shape)
    program: Any = captured._program.plain.__self__  # type: ignore[attr-defined]
    expected, found = (Branches(model, 64, branches=3) for model in (plain, captured))
    prompts = [(0, 0, text[:13]), (1, 0, text[:3]), (2, 0, text[:30])]
    empty, moved = torch.empty, 0
    steps: list[list[tuple[int, int, list[int]]]] = [
        [(0, 13, text[13:14]), (1, 3, text[3:4]), (2, 30, text[30:31])],
        [(2, 31, text[31:32]), (0, 14, text[14:15]), (1, 4, text[4:5])],  # a replay
        [(2, 32, text[32:33]), (1, 5, text[5:6])],
        [(2, 33, text[33:34]), (1, 6, text[6:7]), (0, 15, text[15:16])],  # the array of numbers has moved
    ]
    with ExitStack() as patches:
        for where, name, value in (
            (row_tiles, "UNIT", 16),
            (torch_launcher, "UNIT", 16),
            (torch_launcher, "BLOCK", 16),
            (
                torch_launcher.Launcher,
                "_launch",
                lambda self, *rest, **more: RecordedGraph.launch(self, *rest, **more),
            ),
            (torch.cuda, "CUDAGraph", RecordedGraph),
            (torch.cuda, "graph", RecordedGraph.capture),
            (torch.cuda, "synchronize", lambda: None),
            (torch.cuda, "current_stream", Mock()),
            (torch, "empty", lambda *shape, pin_memory=False, **kind: empty(*shape, **kind)),
        ):
            patches.enter_context(patch.object(where, name, value))
        expected.forward(prompts)
        found.forward(prompts)
        for number, step in enumerate(steps):
            if number == 3:
                program._numbers._grow(1 << 13)
                moved = program._numbers.moves
            batch = found.batch(step)
            with patch.object(DEVICE, "has_streams", True):
                logits = captured.forward(batch, found.pages)
            assert logits.host().tobytes() == expected.forward(step).tobytes(), f"step {number}"
            if number == 2:
                replays = {key: graph.replays for key, graph in program._graphs.items()}
                assert replays == {(4, 2): 2, (2, 4): 1}, replays  # by rows and units
    assert moved == program._numbers.moves == 2 and [*program._graphs] == [(4, 4)]


def check_lenses() -> None:
    """Programs with many results, and the queries of a layer."""
    for name in ("plain", "norms of queries and keys"):
        found = []
        for model in models(MODELS[name]):
            cache, lens = Branches(model, 32), Lens(model)
            batch = cache.batch([(0, 0, tokens(7))])
            found.append(
                (
                    lens.layers(batch, cache.pages),
                    lens.attention(batch, cache.pages),
                    lens.embeddings([3, 4]),
                    model.hidden(batch, cache.pages),
                )
            )
        for theirs, ours in zip(*found, strict=True):
            close(ours, theirs, f"lenses of {name}")


def check_refused() -> None:
    """A batch with a wrong number is refused, and no page is touched."""
    _, model = models(config(windows=(None, 5), positions="learned"))
    rng, cache = np.random.default_rng(0), Branches(model, 96, branches=2)
    for _ in range(80):
        work = [(branch, 0, tokens(int(rng.integers(1, 90)))) for branch in range(2)]
        kind, bad = _spoil(rng, cache.batch(work, every_logit=True), 50, cache.pages[0].count)
        try:
            model.forward(bad, cache.pages)
        except BatchError as error:
            assert "\n" not in str(error)
        else:
            raise AssertionError(f"a batch with a wrong {kind} was computed")
    for group in cache.pages:
        assert not group.keys.any() and not group.values.any()  # type: ignore[attr-defined]
    spec = CacheSpec(1, 1, 16)
    (pages,) = model.ops.cache([spec], 3 * model.ops.page_bytes(spec))
    for source, target in ((-1, 0), (0, -1), (3, 0), (0, 3), (0, 2**40)):
        try:
            pages.copy(source, target)
        except BatchError as error:
            assert "there is no page" in str(error)
        else:
            raise AssertionError(f"page {source} was copied to {target}")


def _rounded_once(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Fused products and sums, which the interpreter would round twice."""
    if a.dtype.scalar != tl.float64:
        return interpreter.TensorHandle(a.data * b.data + c.data, a.dtype.scalar)
    return interpreter.TensorHandle(fused(a.data, b.data, c.data), a.dtype.scalar)


def check_choices() -> None:
    """Choices from rows on the device are those of the native op set, bit for bit, and most rows stay there:
    with penalties, biases and grammars too."""
    rng, chooser = np.random.default_rng(5), DeviceChooser(DEVICE)
    downloaded = rows = 0
    download = DeviceRows.rows

    def counted(self: DeviceRows, which: Sequence[int]) -> Float32:
        nonlocal downloaded
        downloaded += len(which)
        return download(self, which)

    with (
        patch.object(interpreter.InterpreterBuilder, "create_fma", _rounded_once),
        patch.object(DeviceRows, "rows", counted),
    ):
        for width in CHOICE_WIDTHS:
            x, lines = random_rows(rng, 8, width), random_lines(rng, 8, width)
            wrong = differences(chooser, x, lines)
            assert wrong == [], (width, wrong)
            rows += 8
    assert downloaded <= rows // 3, f"{downloaded} of {rows} rows were downloaded"


@triton.jit
def _next_place(masses, first, last, wanted):
    return tl.minimum(_place_with(masses, first, last, wanted) + 1, last)


@triton.jit
def _narrow_power(x):
    return tl.exp(x.to(tl.float32)).to(tl.float64)


_place_with = survivors.place_with


def check_cuts() -> None:
    """Cuts of every kind, which may keep most of a row, have the native op set's records. Nearly all are
    made on the device, which predicts nearly all of their tokens. A border that is off by one token, or
    weights in float32, are noticed."""
    rng, chooser = np.random.default_rng(6), DeviceChooser(DEVICE)
    downloaded = right = count = 0
    download = DeviceRows.rows

    def counted(self: DeviceRows, which: Sequence[int]) -> Float32:
        nonlocal downloaded
        downloaded += len(which)
        return download(self, which)

    with (
        patch.object(interpreter.InterpreterBuilder, "create_fma", _rounded_once),
        patch.dict(device_chooser.SETTINGS, STEPS=1),
        patch.object(device_chooser, "FEW_LINES", 0),
    ):
        for width in (50, 900):
            x, lines = random_rows(rng, 7, width), random_lines(rng, 7, width, random_cuts)
            with patch.object(DeviceRows, "rows", counted):
                wrong, pairs = predictions(chooser, x, lines)
            assert wrong == [], (width, wrong)
            right += sum(predicted == chosen for predicted, chosen in pairs)
            count += len(pairs)
        assert right >= 0.9 * count, f"{right} of {count} tokens were predicted"
        assert downloaded <= 4, f"{downloaded} of {count} rows were downloaded"
        x = rng.normal(0.0, 1.0, (1, 700)).astype(np.float32)
        lines = [(RowRequest(64, 1.0, [Rule(Action.MASS, 0.8)], branch_key(3, 0), 5), 0, 1)]
        assert differences(chooser, x, lines) == []
        for module, name, broken in (
            (survivors, "place_with", _next_place),
            (racing, "power_of_e", _narrow_power),
        ):
            with patch.object(module, name, broken):
                assert differences(chooser, x, lines), name


def check_beyond() -> None:
    """Tokens that are high, but not among the first 64, take part in the race."""
    rng, chooser, record = np.random.default_rng(0), DeviceChooser(DEVICE), record_with(0)
    x = rng.normal(0.0, 0.3, (1, 4100)).astype(np.float32)
    least = np.sort([x[0, group::1024].max() for group in range(1024)])[-64]
    order = np.argsort(-x[0], kind="stable")
    first, beyond = set(order[:64].tolist()), set(order[64 : (x[0] >= least).sum()].tolist())
    request = RowRequest(64, 1.0, [Rule(Action.SCALE, 1.0)], 7)
    seen = set()
    for position in range(200_000):
        made = Chosen(bytes(native_chooser.choose(x, [(request, 0, position)], record)))
        wins = made.id in beyond and made.runner_up in first
        if (wins or (made.id in first and made.runner_up in beyond)) and wins not in seen:
            seen.add(wins)
            found = choose_on_device(chooser, x, [(request, 0, position)], record)[0]
            assert (found.id, found.runner_up, found.rank) == (made.id, made.runner_up, made.rank), position
        if len(seen) == 2:
            return
    raise AssertionError("no such token has won or come second")


def check_ahead() -> None:
    """Steps that are launched before the one before them is committed give the same tokens, and the device
    predicts these, with penalties too."""
    from engine import small

    transformer = small.model(None, "torch")
    options = [
        Sampling(max_tokens=3, temperature=0),
        Sampling(
            max_tokens=3,
            seed=2,
            temperature=0.8,
            top_k=20,
            top_p=0.9,
            min_p=0.02,
            logprobs=2,
            frequency_penalty=2.0,
            repetition_penalty=1.5,
            logit_bias={100: 1.0},
        ),
    ]
    found, ahead = [], 0
    for ahead_too in (False, True):
        loop = small.loop(transformer)
        loop.runs_ahead = ahead_too
        requests = [small.request([*b"the cat"], each, drafts=False) for each in options]
        for each in requests:
            loop.add(each)
        while loop.busy:
            loop.step()
            if loop.ahead.flight is not None:
                ahead += len(loop.ahead.flight.call.works)
                assert not loop.ahead.flight.dropped, "a prediction was wrong"
        found.append([each.runs[0].token_ids for each in requests])
    assert found[0] == found[1], found
    assert ahead == 4, ahead


def check_memory() -> None:
    """Weights that do not fit the device are refused before any is loaded, with figures. A step that finds no
    memory is an error with figures too, and the next one is computed."""
    rng = np.random.default_rng(0)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"])
        for name, shape in MODELS["plain"].shapes().items()
    }
    needed = sum(tensor.size for tensor in weights.values() if len(tensor.shape) == 2) * 4
    with patch.object(Device, "free_memory", lambda _: 1000), patch.object(TorchMatrix, "stored", None):
        try:
            Transformer(MODELS["plain"], weights, TorchOps())
        except GlassloopError as error:
            figures = f"needs {format_bytes(needed)} of the GPU's memory, of which 1000 B is free"
            assert figures in str(error).replace("1.0 KB", "1000 B") and "\n" not in str(error), error
        else:
            raise AssertionError("weights that do not fit were loaded")
    _, model = models(MODELS["plain"])
    cache = Branches(model, 32)
    expected = cache.forward([(0, 0, tokens(3))])
    with patch.object(torch, "empty", Mock(side_effect=torch.OutOfMemoryError("out\nof memory"))):
        try:
            cache.forward([(0, 0, tokens(20))])
        except GlassloopError as error:
            assert "no room for a step of 20 rows: " in str(error) and "\n" not in str(error), error
        else:
            raise AssertionError("a step without memory was computed")
    assert cache.forward([(0, 0, tokens(3))]).tobytes() == expected.tobytes()


def check_packed() -> None:
    """Matrices that stay packed on the device have the values of their codes, scales and middles, these in
    half precision, and a model with them gives nearly the logits of the reference, with few rows and with
    many."""
    rng = np.random.default_rng(0)
    formats = [each for each in FORMATS.values() if each.take_apart]
    for format in formats:
        tensor = random_tensor(rng, "random", (16, 1280), format)
        packed = pack(tensor, DEVICE)
        stored_bytes = TorchMatrix.missing_bytes([TorchMatrix(tensor, DEVICE)], True)
        assert stored_bytes == packed.data.nbytes, format.name
        expected = _packed_values(tensor)
        others = [pack(random_tensor(rng, "other", (16, 256), each), DEVICE) for each in formats]
        common = Form.common([packed.form, *[other.form for other in others]])
        assert common is not None
        for each in (packed, packed.like(common)):
            assert each.expanded(torch.float32).equal(expected), format.name
            assert _expanded_by_kernel(each).equal(expected), format.name
        # Two matrices in turn, and as many rows as are left of a unit.
        pair = [pack(random_tensor(rng, "part", (16, 256), format), DEVICE) for _ in range(2)]
        parts = [TorchMatrix.of(each, DEVICE) for each in pair]
        alone = [part.stored.expanded(torch.float32) for part in parts]  # type: ignore[union-attr]
        both = TorchMatrix.joined(parts, in_turn=True)
        assert isinstance(both, PackedMatrix) and both.matrices == 2
        assert TorchMatrix.joined(parts, in_turn=True).data.data_ptr() == both.data.data_ptr()
        in_turn = torch.stack(alone, 1).flatten(0, 1)
        assert both.expanded(torch.float32).equal(in_turn), format.name
        assert _expanded_by_kernel(both).equal(in_turn), format.name
        # With a matrix that is not quantized, all are expanded as if nothing stayed packed.
        mixed = [random_tensor(rng, "mixed", (16, 256), each) for each in (format, FORMATS["F32"])]
        matrices = [TorchMatrix(tensor, DEVICE) for tensor in mixed]
        for matrix in matrices:
            matrix.stays_packed = True
        values = torch.cat([torch.from_numpy(np.array(tensor.float32())) for tensor in mixed])
        assert TorchMatrix.missing_bytes(matrices, True) == values.nbytes, format.name
        whole = TorchMatrix.joined(matrices)
        assert isinstance(whole, torch.Tensor) and whole.equal(values), format.name
        odd = TorchMatrix.of(pack(random_tensor(rng, "odd", (19, 256), format), DEVICE), DEVICE)
        assert odd.stored.expanded(torch.float32).shape == (19, 256)  # type: ignore[union-attr]
        assert isinstance(TorchMatrix.joined([odd, odd]), torch.Tensor)
        narrow = TorchMatrix(
            random_tensor(rng, "narrow", (1024, 64 if format.block_values <= 64 else 256), format), DEVICE
        )
        narrow.stays_packed = True
        assert isinstance(narrow.stored, PackedMatrix) is (narrow.into == 256), format.name
    # Matrices of different formats take what they take in their common form.
    several = [TorchMatrix(random_tensor(rng, "each", (16, 256), each), DEVICE) for each in formats]
    for matrix in several:
        matrix.stays_packed = True
    expected_bytes = TorchMatrix.missing_bytes(several, True)
    joined = TorchMatrix.joined(several)
    assert isinstance(joined, PackedMatrix) and joined.form == Form(8, 16, True)
    assert joined.data.nbytes == expected_bytes and TorchMatrix.missing_bytes(several, True) == 0
    shape = config(dim=128, ffn_dim=256, heads=8, tied=True)
    kinds = {"q": "Q4_0", "k": "Q8_0", "v": "Q4_1", "o": "IQ4_NL", "down": "Q5_0", "token_embedding": "MXFP4"}
    weights = {}
    for name, size in shape.shapes().items():
        kind = kinds.get(name.split(".")[-2], "Q4_1") if len(size) == 2 else "F32"
        weights[name] = random_tensor(rng, name, size, FORMATS[kind])
    expected_logits = _reference_logits(shape, weights)
    for stored in ("expanded", "packed"):
        with patch.dict(os.environ, GLASSLOOP_GPU_WEIGHTS=stored):
            model = Transformer(shape, weights, TorchOps())
        assert model.ops.description.endswith("/packed") is (stored == "packed")
        program: Any = model._program.plain.__self__  # type: ignore[attr-defined]
        is_packed = [isinstance(each.get("weight"), PackedMatrix) for each in program._settings]
        assert sum(is_packed) == (0 if stored == "expanded" else 5), is_packed
        cache = Branches(model, 64, branches=2)
        rows = [cache.forward([(0, 0, tokens(7)), (1, 0, tokens(3, 1))], every_logit=True)]
        rows.append(cache.forward([(0, 7, tokens(1, 2)), (1, 3, tokens(1, 3))]))
        found = np.concatenate(rows)
        if stored == "expanded":
            close(found, expected_logits, "quantized weights")
        else:
            assert np.abs(found - expected_logits).max() < 0.03 * np.abs(expected_logits).max()
    try:
        with patch.dict(os.environ, GLASSLOOP_GPU_WEIGHTS="both"):
            Transformer(shape, weights, TorchOps())
    except GlassloopError as error:
        assert "one of auto, packed, expanded is expected" in str(error)
    else:
        raise AssertionError("a wrong setting was taken")
    for free, expected_packed in ((10**9, False), (1000, True)):
        with patch.object(Device, "free_memory", lambda _, free=free: free):
            assert DEVICE.keeps_packed(2000, 900) is expected_packed


def _packed_values(tensor: Any) -> torch.Tensor:
    """Returns the values of a quantized tensor with scales and middles in half precision."""
    stored = tensor.format
    parts = stored.take_apart(tensor.data.reshape(-1, stored.block_bytes))
    codes, (scale, lowest) = parts.codes, factors(stored, parts)
    codes = np.array(stored.table, np.float32)[codes] if stored.table else codes.astype(np.float32)
    scale = scale.reshape(*codes.shape[:2], 1)
    middle = np.zeros_like(scale)
    if lowest is not None:
        half = np.float32(2 if stored.name == "Q2_K" else 8 if stored.name in ("Q4_1", "Q4_K") else 16)
        codes, middle = codes - half, lowest.reshape(scale.shape) + half * scale
    rounded = [torch.from_numpy(each).bfloat16().double() for each in (scale, middle)]
    return (torch.from_numpy(codes).double() * rounded[0] + rounded[1]).float().reshape(tensor.shape)


def check_small_floats() -> None:
    """Matrices of FP8 stay so on the device, with the values that they have when they are expanded on the
    host; one with a NaN is expanded."""
    rng = np.random.default_rng(0)
    out, into = 24, 384
    blocks = rng.integers(0, 256, (out, into // 128, 132), np.uint8)
    blocks[..., 4:][blocks[..., 4:] & 127 == 127] = 3  # NaN
    blocks[0, 0, 4:20] = [*range(8), *range(128, 136)]  # the smallest
    for scales in (0.01, 3e-5, rng.random((out, 3)) + 0.001, 2.0 ** rng.integers(-20, 20, (out, 3))):
        numbers = np.broadcast_to(np.float32(scales), (out, 3)).astype("<f4")
        blocks[..., :4] = np.ascontiguousarray(numbers).view(np.uint8).reshape(out, 3, 4)
        stored = Tensor("fp8", (out, into), F8_E4M3, blocks.reshape(-1).copy())
        values = torch.from_numpy(stored.float32())
        packed = pack(stored, DEVICE)
        assert packed.data.nbytes == out * into * 33 // 32 and packed.form.is_float
        assert packed.expanded(torch.float32).equal(values) and _expanded_by_kernel(packed).equal(values)
    tensor = Computed.later(
        "fp8", (out, into), BF16, lambda: quantize(BF16, stored.float32().reshape(-1)), stored
    )
    for number in range(2):
        matrices = [TorchMatrix(tensor, DEVICE), TorchMatrix(tensor.rows(slice(None, None, -1)), DEVICE)]
        for matrix in matrices:
            matrix.stays_packed = True
        whole = TorchMatrix.joined(matrices)
        assert isinstance(whole, PackedMatrix) is (number == 0)
        if isinstance(whole, PackedMatrix):
            expected = torch.cat([values, values.flip(0)])
            assert whole.expanded(torch.float32).equal(expected) and _expanded_by_kernel(whole).equal(
                expected
            )
        stored.data.reshape(out, 3, 132)[5, 1, 70] = 255
    shape = config(dim=128, ffn_dim=256, heads=8, tied=True)
    weights: dict[str, Any] = {}
    for name, size in shape.shapes().items():
        weights[name] = random_tensor(rng, name, size, FORMATS["F32"])
        if len(size) == 2 and not name.startswith("token"):
            codes = rng.integers(0, 256, (size[0], size[1] // 128, 132), np.uint8)
            codes[..., 4:] &= 0xBF  # small ones
            codes[..., :4] = np.array([0.2], "<f4").view(np.uint8)
            small = Tensor(name, size, F8_E4M3, codes.reshape(-1))
            weights[name] = Computed.later(name, size, BF16, partial(_rounded, small), small)
    expected_logits, found = _reference_logits(shape, weights), {}
    for setting in ("auto", "expanded"):
        with patch.dict(os.environ, GLASSLOOP_GPU_WEIGHTS=setting):
            model = Transformer(shape, weights, TorchOps())
        assert model.ops.description.endswith("/packed") is (setting == "auto")
        cache = Branches(model, 64, branches=2)
        rows = [cache.forward([(0, 0, tokens(7)), (1, 0, tokens(3, 1))], every_logit=True)]
        rows.append(cache.forward([(0, 7, tokens(1, 2)), (1, 3, tokens(1, 3))]))
        found[setting] = np.concatenate(rows)
        # Under the interpreter packed values are not rounded to half precision.
        assert np.abs(found[setting] - expected_logits).max() < 0.02 * np.abs(expected_logits).max(), setting


def _rounded(stored: Tensor) -> Any:
    return quantize(BF16, stored.float32().reshape(-1))


def _expanded_by_kernel(weight: PackedMatrix) -> torch.Tensor:
    rows, columns = weight.shape
    out = torch.zeros(rows, columns)
    packed_kernels.expand_kernel[(-(-rows // 8), -(-columns // 512))](
        out=out, rows=rows, columns=columns, ROWS=8, STEP=512, MATRICES=weight.matrices, **weight.arguments()
    )
    return out


def _reference_logits(shape: ModelConfig, weights: dict[str, Any]) -> Float32:
    cache = Branches(Transformer(shape, weights, ReferenceOps()), 64, branches=2)
    rows = [cache.forward([(0, 0, tokens(7)), (1, 0, tokens(3, 1))], every_logit=True)]
    rows.append(cache.forward([(0, 7, tokens(1, 2)), (1, 3, tokens(1, 3))]))
    return np.concatenate(rows)


def check_wide() -> None:
    """The product that copies tiles by descriptors gives what the plain one gives."""
    rng = np.random.default_rng(0)
    x, weight, bias, added = (
        torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        for shape in ((20, 40), (66, 40), (66,), (20, 33))
    )
    for gated in (False, True):
        width = 33 if gated else 66
        residual = added if gated else torch.cat([added, added], 1)
        sizes = (bias, residual, 20, width, 40, width, width)
        settings: dict[str, Any] = {"BIASED": True, "ADDED": True, "GATED": gated, "ACTIVATION": 2}
        settings |= {"ROWS": 16, "WIDTH": 16, "STEP": 16}
        found = [torch.zeros(20, width), torch.zeros(20, width)]
        before, after = (*sizes[:2],), sizes[2:]
        linear.linear_kernel[(2 * -(-66 // 16),)](
            x,
            weight,
            *before,
            found[0],
            *after,
            40,
            SWAPPED=False,
            EVEN=False,
            EARLY=False,
            **settings,
        )
        descriptors = [TensorDescriptor(each, list(each.shape), [40, 1], [16, 16]) for each in (x, weight)]
        for pieces in (1, 2, 4):
            found[1].fill_(np.nan)
            linear.wide_linear_kernel[(3,)](
                *descriptors, *before, found[1], *after, PIECES=pieces, **settings
            )
            close(found[1].numpy(), found[0].numpy(), f"a wide product in {pieces} pieces")
        gate, up = (x @ weight[at::2].T + bias[at::2] for at in (0, 1))  # their rows in turn
        expected = torch.nn.functional.silu(gate) * up if gated else x @ weight.T + bias
        close(found[0].numpy(), (expected + residual).numpy(), "a product")


def check_slices() -> None:
    """A product whose columns are added up in slices is one, whatever the number of chunks."""
    rng = np.random.default_rng(0)
    for columns in (128, 256, 1024, 1152, 2432):
        x, weight = (
            torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32)) for rows in (5, 20)
        )
        for swapped in (False, True):
            out = torch.full((5, 20), np.nan)
            linear.linear_kernel[(2,)](
                x, weight, x, x, out, 5, 20, columns, 20, 20, columns, ROWS=16, WIDTH=16, STEP=64,
                SWAPPED=swapped, EVEN=True, BIASED=False, ADDED=False, GATED=False, ACTIVATION=0, EARLY=False,
                SLICES=packed_linear.SLICES,
            )  # fmt: skip
            close(out.numpy(), (x @ weight.T).numpy(), f"{columns} columns in slices")
    # Two ones in one slice are lost if they are added one by one to a large number in another slice.
    x, out = torch.zeros(1, 2048), torch.zeros(1, 1)
    x[0, 0], x[0, 256], x[0, 384] = 2.0**24, 1.0, 1.0
    linear.linear_kernel[(1,)](
        x, torch.ones(1, 2048), x, x, out, 1, 1, 2048, 1, 1, 2048, ROWS=16, WIDTH=16, STEP=128,
        SWAPPED=False, EVEN=True, BIASED=False, ADDED=False, GATED=False, ACTIVATION=0, EARLY=False,
        SLICES=packed_linear.SLICES,
    )  # fmt: skip
    assert out.item() == 2.0**24 + 2.0, out


def check_packed_linear() -> None:
    """The kernel for few rows always fits the shared memory. Where NVIDIA's compiler is installed, it
    compiles, and no register is spilled."""
    table = tuple(int(value) for value in FORMATS["IQ4_NL"].table)
    kinds = [Form(4, 32, True), Form(4, 32, False), Form(8, 32, False), Form(8, 16, True)]
    kinds += [Form(4, 32, False, table), Form(4, 16, False, table), Form(8, 128, False, (), True)]
    compiles, silu, half = nvrtc.is_available(), 2, torch.bfloat16

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    for form, columns in product(kinds, (128, 2048, 4096, 14336, 28672)):
        for rows, gated, shared in product((1, 2, 8, 9, 16, 17, 64), (False, True), (101_376, 232_448)):
            data = empty(512, columns // 128 * form.chunk_bytes, dtype=torch.uint8)
            matrices = 2 if gated else 1
            weight = PackedMatrix(data, (4096, columns), form, matrices)
            found = packed_linear.division_for(rows, columns, weight.form, shared)
            assert found is not None and found.shared * found.division.blocks <= shared, (rows, columns)
            out = empty(rows, 4096 // matrices, dtype=half if gated else torch.float32)
            each = MatrixProduct(rows, out, empty(rows, columns, dtype=half), None, weight, None, gated, silu)
            settings = tuple(packed_linear.settings_for(each, found, early=True).items())
            if compiles and (rows, columns) in ((1, 4096), (2, 4096), (9, 4096), (16, 14336), (64, 28672)):
                code = nvrtc.translate(packed_linear.SOURCE, settings, "sm_90")
                assert stack_bytes(code) == 0, settings
    if compiles:
        early = {"EARLY": 0}
        nvrtc.translate(packed_linear.SOURCE, tuple((dict(settings) | early).items()), "sm_80")


CHECKS = {name.removeprefix("check_"): each for name, each in globals().items() if name.startswith("check_")}


if __name__ == "__main__":
    assert choose_ops("torch").description.startswith("torch/interpreter/")
    errors = {}
    for name, check in CHECKS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            check()
        except Exception:
            errors[name] = format_exc()
    print(json.dumps(errors))
