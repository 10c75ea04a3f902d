"""The conformance list: small cases of every operation of `ops/protocol.py`, with odd sizes and special
values, that every op set has to pass. Whoever writes an op set for another device begins here.

    python -m tests.ops.conformance native            all cases, a line each; also reference and torch
    python -m tests.ops.conformance my.module:MyOps   an op set of one's own, by its class
    python -m tests.ops.conformance native linear     the cases of one operation

Each case is a fragment of a forward pass on some rows. Its results are compared with those of the reference
op set, within what the arithmetic of an op set may cost (`BOUNDS`; half precision: `HALF_BOUND`). Then every
row is computed alone and has to have the same bits, which all op sets but the reference promise. An op set
may lack operations (`Ops.lacks`): their cases are skipped and named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from glassloop.ops import NAMES, choose_ops
from glassloop.ops.batch import PAGE, Batch, pages_for
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.protocol import Array, Ops, QueryGrowth
from glassloop.ops.quant import FORMATS, Float32, Format
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.routing import PLAIN_GATING, Expert, Gating, Router, Routing
from glassloop.ops.state_cache import StateSpec
from glassloop.ops.tensor import Tensor

# The largest difference from the reference, in parts of the largest result of a row.
BOUNDS = {
    "exact": 0.0,
    "float": 3e-5,  # another order of float32 sums, another exp
    "attention": 2e-3,  # keys, values and weights of 16 bits
    "quantized": 0.03,  # inputs of products rounded to 8 bits
    "experts": 0.1,  # three such products one after another
}
HALF_BOUND = 0.03  # of op sets that compute in half precision (bfloat16)
SPECIAL = (0.0, -0.0, 1e-40, -1e-40, 1e-20, 6.0, -6.0, 60.0, -60.0, 1e15, -1e15)
_SPEC = CacheSpec(1, 2, 16)


class Part(NamedTuple):
    """What a case works with: its op set, its weights in the form of the op set, and the batch."""

    ops: Ops
    weights: dict[str, Any]
    batch: Batch
    pages: Any


Compute = Callable[[Array, Part], Array]


class Case(NamedTuple):
    """A fragment of a forward pass. `compute` takes the rows x, and `needs` names the operations it calls."""

    name: str
    x: Float32  # [rows, width]
    compute: Compute
    needs: tuple[str, ...]
    bound: str = "float"  # a key of BOUNDS
    weights: Mapping[str, Any] = MappingProxyType({})  # tensors, or (down, up, scale) of an adapter
    spans: tuple[tuple[int, int], ...] = ()  # first position and rows of each branch; (): there is one
    adapters: tuple[int, ...] = ()
    reach: tuple[int, ...] = ()
    table: Tensor | None = None  # of which the rows x are taken, if not a matrix of x itself

    @property
    def operation(self) -> str:
        return self.needs[0]


# ── running a case ─────────────────────────────────────────────────────────────────────────────────────────


def results(case: Case, ops: Ops, rows: Sequence[int] | None = None) -> Float32:
    """Returns what an op set computes for a case; with `rows`, one step for each of them, in order."""
    prepared = {name: _prepared(name, value, ops) for name, value in case.weights.items()}
    table = ops.matrix(case.table or Tensor.of("x", case.x))

    def compute(batch: Any, pages: Any) -> Array:
        part = Part(ops, prepared, batch, pages)
        return case.compute(ops.embed(table, batch.tokens), part)

    program = ops.program(compute, adapted=bool(case.adapters))
    spans = case.spans or ((0, len(case.x)),)
    needed = [pages_for(first + count) for first, count in spans]
    pages = ops.cache([_SPEC], ops.page_bytes(_SPEC) * (sum(needed) + 1))
    # The pages of each branch, in an order of their own.
    ends = np.cumsum(needed)
    tables = [
        np.arange(end - count, end, dtype=np.int32)[::-1].reshape(1, -1).copy()
        for count, end in zip(needed, ends.tolist(), strict=True)
    ]
    if "conv" in case.needs:
        pages, tables = [*pages, _slots(case, ops, sum(needed))], [_with_lines(table) for table in tables]
    starts = np.cumsum([0, *[count for _, count in spans]]).tolist()
    if rows is None:
        work = [
            (tables[number], first, list(range(starts[number], starts[number + 1])))
            for number, (first, _) in enumerate(spans)
        ]
        batch = Batch.of(work, [count for _, count in spans])
        return _run(program, ops, batch._replace(adapters=list(case.adapters), reach=list(case.reach)), pages)
    steps = []
    for row in rows:
        number = next(n for n in range(len(spans)) if row < starts[n + 1])
        batch = Batch.of([(tables[number], spans[number][0] + row - starts[number], [row])])
        steps.append(_run(program, ops, batch._replace(adapters=list(case.adapters[row : row + 1])), pages))
    return np.concatenate(steps)


def _slots(case: Case, ops: Ops, pages: int) -> Any:
    """Returns slots for a convolution: one for each border and one for each token."""
    taps, channels = case.weights["kernel"].shape
    return ops.states(StateSpec(1, (taps - 1) * channels, channels), pages, pages * PAGE)


def _with_lines(table: np.ndarray) -> np.ndarray:
    """Returns a page table with the lines of recurrent layers: slots by the numbers of the pages."""
    rows = table * PAGE + np.arange(PAGE, dtype=np.int32)[:, None]
    return np.concatenate([table, table, rows])


def _run(program: Any, ops: Ops, batch: Batch, pages: Any) -> Float32:
    with np.errstate(all="ignore"):
        return np.array(ops.host(program(batch, pages)), np.float32)


def _prepared(name: str, value: Any, ops: Ops) -> Any:
    if isinstance(value, Tensor):
        return ops.matrix(value) if len(value.shape) == 2 and name != "kernel" else ops.vector(value)
    down, up, scale = value
    return ops.low_rank(down, up, scale)


def failure(case: Case, ops: Ops, half: bool) -> str:
    """Returns what is wrong with an op set's results for a case, or nothing."""
    expected, actual = results(case, ReferenceOps()), results(case, ops)
    if actual.shape != expected.shape:
        return f"has shape {actual.shape}; {expected.shape} is expected"
    if (np.isnan(actual) != np.isnan(expected)).any():
        return "has NaN in other places"
    bound = BOUNDS[case.bound]
    if half and case.bound != "exact":
        bound = max(bound, HALF_BOUND)
    finite = np.isfinite(expected)
    size = np.abs(np.where(finite, expected, 0)).max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(actual - expected), 0) / np.maximum(size, np.float32(1e-30))
    if not np.isfinite(actual[finite]).all() or error.max() > bound:
        return f"is off by {error.max():.2g}; at most {bound:.2g} is allowed"
    # Triton's interpreter multiplies by NumPy, as the reference does.
    promised = ops.name != "reference" and "interpreter" not in ops.description
    if promised and not case.reach:
        alone = results(case, ops, range(len(case.x)))
        differ = [row for row in range(len(alone)) if alone[row].tobytes() != actual[row].tobytes()]
        if differ:
            return f"rows {differ[:5]} have other bits alone than in the batch"
    return ""


# ── the cases ──────────────────────────────────────────────────────────────────────────────────────────────


def cases() -> Iterator[Case]:
    """Yields all cases, always the same ones."""
    yield from _embeddings()
    yield from _products()
    yield from _adapters()
    yield from _norms()
    yield from _pointwise()
    yield from _convolutions()
    yield from _attention()
    yield from _routes()
    yield from _experts()


def _values(seed: int, *shape: int, size: float = 1.0) -> Float32:
    """Returns random values that bfloat16 holds exactly."""
    values = (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _matrix(seed: int, out: int, into: int, format: Format = FORMATS["F32"]) -> Tensor:
    from ops.random_models import random_tensor

    if format.take_apart is not None:
        return random_tensor(np.random.default_rng(seed), "weight", (out, into), format)
    return Tensor.of("weight", _values(seed, out, into, size=into**-0.5)).stored_as(format)


def _taken(x: Array, part: Part) -> Array:
    return part.ops.take(x, part.batch.wanted)


def _embeddings() -> Iterator[Case]:
    for name, format in FORMATS.items():
        table = _matrix(1, 5, max(format.block_values, 32) if format.take_apart else 37, format)
        bound = "exact" if format.take_apart is None else "float"
        yield Case(f"embed {name}", table.float32(), _taken, ("embed", "take"), bound, table=table)


def _product(x: Array, part: Part) -> Array:
    return _taken(part.ops.linear(x, part.weights["weight"], part.weights.get("bias")), part)


def _head(x: Array, part: Part) -> Array:
    return part.ops.head(_taken(x, part), part.weights["weight"])


def _products() -> Iterator[Case]:
    for name, format in FORMATS.items():
        quantized = format.take_apart is not None
        bound = "quantized" if quantized else "float"
        least = max(format.block_values, 128)
        widths = (least, 2 * least) if quantized else (1, 37, 160)
        for width in widths:
            weight = _matrix(2, 19, width, format)
            for rows in (1, 2, 13):
                x = _values(rows, rows, width)
                yield Case(
                    f"linear {name} {rows} × {width}", x, _product, ("linear",), bound, {"weight": weight}
                )
        bias = Tensor.of("bias", _values(3, 19))
        x = _values(4, 35, width)
        yield Case(
            f"linear {name} with bias", x, _product, ("linear",), bound, {"weight": weight, "bias": bias}
        )
        yield Case(f"head {name}", x[:5], _head, ("head",), bound, {"weight": weight})
    zeros = np.zeros((3, 64), np.float32)
    zeros[1] = _values(5, 64)
    for name in ("F32", "Q8_0", "Q4_1"):
        weight = _matrix(6, 7, 64, FORMATS[name])
        bound = "float" if name == "F32" else "quantized"
        yield Case(f"linear {name} of zeros", zeros, _product, ("linear",), bound, {"weight": weight})
        for size in (1e-30, 1e15):
            x = _values(7, 3, 64, size=size)
            yield Case(
                f"linear {name} of values about {size:g}", x, _product, ("linear",), bound, {"weight": weight}
            )
        spoiled = _values(8, 3, 64)
        spoiled[1, 5] = np.nan
        yield Case(f"linear {name} of a NaN", spoiled, _product, ("linear",), bound, {"weight": weight})


def _adapted(x: Array, part: Part) -> Array:
    y = part.ops.linear(x, part.weights["weight"], None)
    parts = [part.weights.get(f"adapter {number}") for number in range(3)]
    return _taken(part.ops.adapt(y, x, part.batch.adapters, parts), part)


def _adapters() -> Iterator[Case]:
    for rank in (1, 3, 16):
        weights: dict[str, Any] = {"weight": _matrix(9, 19, 40)}
        for number in (1, 2):
            weights[f"adapter {number}"] = _matrix(10, rank, 40), _matrix(11 + number, 19, rank), 0.5 * number
        for adapters in ((1, 1, 1, 1), (0, 1, 2, 1), (2, 0, 0, 0)):
            yield Case(
                f"adapt rank {rank}, rows {adapters}", _values(12, 4, 40), _adapted, ("adapt",),
                "float", weights, adapters=adapters,
            )  # fmt: skip


def _rms_norm(x: Array, part: Part) -> Array:
    return _taken(part.ops.rms_norm(x, part.weights["weight"], 1e-5), part)


def _layer_norm(x: Array, part: Part) -> Array:
    return _taken(part.ops.layer_norm(x, part.weights["weight"], part.weights["bias"], 1e-5), part)


def _norms() -> Iterator[Case]:
    for name, compute in (("rms_norm", _rms_norm), ("layer_norm", _layer_norm)):
        for width in (1, 7, 64, 300):
            weights = {
                "weight": Tensor.of("weight", _values(13, width)),
                "bias": Tensor.of("bias", _values(14, width)),
            }
            x = np.concatenate(
                [
                    _values(15, 3, width),
                    np.zeros((1, width), np.float32),
                    _values(16, 1, width, size=1e-12),
                    _values(17, 1, width, size=1e12),
                ]
            )
            yield Case(f"{name} of {width}", x, compute, (name,), "float", weights)


def _pointwise() -> Iterator[Case]:
    special = np.array([SPECIAL, SPECIAL[::-1]], np.float32)
    plain = _values(18, 3, 37, size=3.0)
    for kind in ("silu", "gelu_tanh", "gelu", "relu", "sigmoid", "relu2", "none"):

        def activate(x: Array, part: Part, kind: Any = kind) -> Array:
            return _taken(part.ops.activate(x, kind), part)

        def gate(x: Array, part: Part, kind: Any = kind) -> Array:
            return _taken(part.ops.gate(x, part.ops.scale(x, 0.5), kind), part)

        for what, x in (("", plain), (" of special values", special)):
            yield Case(f"activate {kind}{what}", x, activate, (f"activate:{kind}",))
            yield Case(f"gate {kind}{what}", x, gate, (f"gate:{kind}", "scale"))

    def add(x: Array, part: Part) -> Array:
        return _taken(part.ops.add(x, part.ops.scale(x, -3.0)), part)

    def scale(x: Array, part: Part) -> Array:
        return _taken(part.ops.scale(x, 2.5), part)

    def softcap(x: Array, part: Part) -> Array:
        return _taken(part.ops.softcap(x, 30.0), part)

    for what, x in (("", plain), (" of special values", special)):
        yield Case(f"add{what}", x, add, ("add", "scale"))
        yield Case(f"scale{what}", x, scale, ("scale",), "float")
        yield Case(f"softcap{what}", x, softcap, ("softcap",))


def _convolutions() -> Iterator[Case]:
    sizes = ((3, 37, 70, True), (4, 16, 33, False), (1, 5, 3, True), (4, 130, 65, True))
    for taps, channels, rows, bias in sizes:
        for kind in ("none", "silu"):

            def compute(x: Array, part: Part, kind: Any = kind) -> Array:
                kernel, bias = part.weights["kernel"], part.weights.get("bias")
                return _taken(part.ops.conv(x, kernel, bias, kind, part.batch, part.pages, (1, 0)), part)

            weights = {"kernel": Tensor.of("kernel", _values(60, taps, channels))}
            if bias:
                weights["bias"] = Tensor.of("bias", _values(61, 1, channels)[0])
            spans = ((0, rows - rows // 3), (0, rows // 3))
            name = f"convolution over {taps} tokens of {channels} channels, {kind}"
            needs = ("conv", "states", f"gate:{kind}")
            yield Case(name, _values(62, rows, channels), compute, needs, "float", weights, spans)


def _attention() -> Iterator[Case]:
    """Queries, keys and values of one input, as a layer has them: two key-value heads of 16."""

    def case(
        name: str,
        spans: tuple[tuple[int, int], ...],
        heads: int = 4,
        window: int | None = None,
        softcap: float | None = None,
        rope: bool = True,
        norm: bool = False,
        reach: tuple[int, ...] = (),
        sinks: float | None = None,
        whole: bool = False,
        values: bool = False,
        again: bool = False,
        growth: QueryGrowth | None = None,
        turned_first: bool = False,
    ) -> Case:
        frequencies = (10.0 ** -np.arange(6)).astype(np.float32)  # of 12 of the 16 dimensions

        def compute(x: Array, part: Part) -> Array:
            ops, weights, batch, pages = part
            q, k, v = (ops.linear(x, weights[at], None) for at in "qkv")
            if whole:
                q = ops.rms_norm(q, weights["whole"], 1e-5)
            q, k, v = (ops.split_heads(each, heads if each is q else 2) for each in (q, k, v))
            if norm and not turned_first:
                q, k = (ops.rms_norm(each, weights["norm"], 1e-5) for each in (q, k))
            if values:
                v = ops.rms_norm(v, weights["norm"], 1e-5)
            if rope:
                angles = ops.angles(batch.positions, frequencies, 1.0)
                grown = ops.angles(batch.positions, frequencies, 1.0, growth) if growth else angles
                q, k = ops.rotate(q, grown), ops.rotate(k, angles)
            if turned_first:
                q, k = (ops.rms_norm(each, weights["norm"], 1e-5) for each in (q, k))
            about = 0.25, window, softcap, weights["sinks"] if sinks is not None else None
            mixed = ops.attention(q, k, v, batch, pages, (0, 0), *about)
            if again:  # another layer over the same keys
                q = ops.split_heads(ops.linear(mixed, weights["square"], None), heads)
                mixed = ops.attend(q, 2, batch, pages, (0, 0), *about)
            return _taken(mixed, part)

        needs = ["attention", "split_heads", "linear", *(["angles", "rotate"] if rope else [])]
        needs += ["rms_norm"] if norm else []
        needs += [f"attention:{kind}" for kind, used in (("window", window), ("softcap", softcap)) if used]
        needs += ["attention:reach"] if reach else []
        needs += ["attention:sinks"] if sinks is not None else []
        needs += ["attend"] if again else []
        weights: dict[str, Any] = {
            at: _matrix(20 + number, (heads if at == "q" else 2) * 16, 24) for number, at in enumerate("qkv")
        }
        weights["norm"] = Tensor.of("norm", _values(23, 16))
        weights["whole"] = Tensor.of("whole", _values(25, heads * 16))
        weights["square"] = _matrix(26, heads * 16, heads * 16)
        weights["sinks"] = Tensor.of("sinks", _values(27, heads, size=sinks or 0.0))
        rows = sum(count for _, count in spans)
        # In other sizes the rows before the first of a branch would have to be computed first.
        assert all(first == 0 for first, _ in spans)
        x = _values(24, rows, 24)
        return Case(f"attention {name}", x, compute, tuple(needs), "attention", weights, spans, reach=reach)

    yield case("of one row", ((0, 1),))
    yield case("without rotation", ((0, 9),), rope=False)
    yield case("of a page and a row", ((0, PAGE + 1),))
    yield case("of several branches", ((0, 3), (0, 40), (0, 1), (0, 7)))
    for heads in (2, 6, 8):
        yield case(f"with {heads} heads", ((0, 11),), heads=heads)
    for window in (1, 2, 33, 100):
        yield case(f"with a window of {window}", ((0, 70),), window=window)
    yield case("with a softcap", ((0, 20),), softcap=2.0)
    yield case("with norms of queries and keys", ((0, 20),), norm=True)
    yield case("with a norm of values", ((0, 20),), values=True)
    yield case("with a norm of whole rows of queries", ((0, 20),), whole=True)
    yield case("with norms after the rotation", ((0, 20),), turned_first=True)
    yield case("with queries that grow", ((0, 50),), growth=QueryGrowth(0.3, 7))
    yield case("over the keys of another layer", ((0, 37), (0, 2)), again=True)
    for size in (0.0, 1.0, 100.0):
        yield case(f"with sinks of about {size:g}", ((0, 40), (0, 3)), sinks=size)
    yield case("with sinks and a window", ((0, 70),), heads=6, window=5, sinks=2.0)
    yield case("with sinks over the keys of another layer", ((0, 9),), softcap=2.0, sinks=1.0, again=True)
    yield case("with sinks and reach", ((0, 6),), sinks=1.0, reach=(1, 2, 6, 6, 6, 6))
    yield case("with reach", ((0, 6), (0, 3)), reach=(1, 2, 6, 6, 6, 6, 3, 3, 3))
    yield case("with reach and a window", ((0, 6),), window=2, reach=(6, 6, 6, 6, 6, 6))


_ROUTINGS = {
    "softmax": Routing(9, 3),
    "softmax of one": Routing(1, 1),
    "softmax, normalized": Routing(40, 8, normalized=True, factor=2.5),
    "softmax with a bias of the choice": Routing(9, 4, normalized=True, epsilon=1e-12),
    "sigmoid": Routing(7, 2, "sigmoid"),
    "sigmoid with groups": Routing(24, 4, "sigmoid", True, 1e-20, groups=6, chosen_groups=2),
    "sigmoid with a bias of the choice": Routing(24, 3, "sigmoid", groups=4, chosen_groups=3),
    "chosen": Routing(20, 4, "chosen"),
    "mixer": Routing(16, 2, "mixer", closeness=0.2),
}


def _route(x: Array, part: Part, routing: Routing) -> Array:
    weights = part.weights
    router = Router(weights["router"], *(weights.get(name) for name in ("bias", "choice", "factors")))
    return part.ops.route(x, router, routing)


def _routes() -> Iterator[Case]:
    x = np.concatenate([_values(30, 5, 40), np.zeros((1, 40), np.float32), _values(31, 1, 40, size=1e15)])
    x[2, 7] = np.nan
    for name, routing in _ROUTINGS.items():

        def compute(x: Array, part: Part, routing: Routing = routing) -> Array:
            return _taken(_route(x, part, routing), part)

        weights: dict[str, Any] = {"router": _matrix(32, routing.experts, 40)}
        if "bias" in name:
            weights["choice"] = Tensor.of("choice", _values(33, routing.experts, size=0.1))
        elif "chosen" in name:
            weights["bias"] = Tensor.of("bias", _values(34, routing.experts))
        elif "normalized" in name:
            weights["factors"] = Tensor.of("factors", _values(35, routing.experts))
        yield Case(f"route by {name}", x, compute, (f"route:{routing.scores}",), "float", weights)


def _experts() -> Iterator[Case]:
    def case(
        name: str,
        format: Format,
        rows: int,
        routing: Routing = Routing(5, 2, normalized=True),
        gating: Gating = PLAIN_GATING,
        bias: bool = False,
        weigh_input: bool = False,
        sizes: tuple[int, int] = (40, 37),
    ) -> Case:
        dim, ffn = sizes
        if format.take_apart is not None:
            dim = ffn = max(format.block_values, 64)
        weights: dict[str, Any] = {"router": _matrix(40, routing.experts, dim)}
        for number in range(routing.experts):
            for at, (kind, out, into) in enumerate(
                (("gate", ffn, dim), ("up", ffn, dim), ("down", dim, ffn))
            ):
                weights[f"{number} {kind}"] = _matrix(41 + 3 * number + at, out, into, format)
                if bias:
                    weights[f"{number} {kind} bias"] = Tensor.of("bias", _values(90 + number + at, out))

        def compute(x: Array, part: Part) -> Array:
            kinds = [*("gate", "up", "down"), *(f"{kind} bias" for kind in ("gate", "up", "down"))]
            experts = [
                Expert(*(part.weights.get(f"{number} {kind}") for kind in kinds))
                for number in range(routing.experts)
            ]
            routes = _route(x, part, routing)
            return _taken(part.ops.experts(x, routes, experts, gating, weigh_input), part)

        bound = "float" if format.take_apart is None else "experts"
        needs = (f"experts:{gating.activation}", f"route:{routing.scores}")
        return Case(f"experts {name}", _values(36, rows, dim), compute, needs, bound, weights)

    for name, format in FORMATS.items():
        yield case(name, format, 13)
    floats = FORMATS["F32"]
    for rows in (1, 2, 3, 130):
        yield case(f"of {rows} rows", floats, rows)
        yield case(f"Q8_0 of {rows} rows", FORMATS["Q8_0"], rows)
    yield case("of one expert", FORMATS["Q4_0"], 53, Routing(1, 1, "sigmoid"))
    yield case("that all are chosen", FORMATS["Q4_1"], 51, Routing(3, 3))
    yield case("of 70 with 8 chosen", floats, 9, Routing(70, 8, "sigmoid"), sizes=(32, 8))
    yield case("with biases", floats, 6, bias=True)
    yield case(
        "with biases and limits", floats, 6, Routing(4, 2, "chosen"), Gating("silu", 0.7, 1.702, 1.0), True
    )
    yield case("MXFP4 with biases and limits", FORMATS["MXFP4"], 6, Routing(4, 2, "chosen"),
               Gating("silu", 7.0, 1.702, 1.0), True)  # fmt: skip
    for kind in ("gelu_tanh", "relu"):
        yield case(f"with {kind}", floats, 4, gating=Gating(kind))
    yield case("with weighed inputs", floats, 7, Routing(4, 1, "sigmoid"), weigh_input=True)
    yield case("with two weighed inputs", floats, 7, Routing(4, 2, "sigmoid"), weigh_input=True)
    yield case("Q8_0 with weighed inputs", FORMATS["Q8_0"], 7, Routing(4, 2, "sigmoid"), weigh_input=True)


# ── the list as a program ──────────────────────────────────────────────────────────────────────────────────


def op_set(name: str) -> Ops:
    """Returns an op set by its name, or by module and class."""
    if name in NAMES:
        return choose_ops(name)
    module, _, kind = name.partition(":")
    ops: Ops = getattr(import_module(module), kind)()
    return ops


def lacking(case: Case, ops: Ops) -> str:
    """Returns the operation of a case that an op set lacks, or nothing."""
    return next((name for name in case.needs if {name, name.partition(":")[0]} & ops.lacks), "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.ops.conformance", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("ops", help=f"{', '.join(NAMES)}, or module:class")
    parser.add_argument("operation", nargs="?", help="only its cases: embed, linear, attention, …")
    options = parser.parse_args(arguments)
    ops, counts = op_set(options.ops), {"passed": 0, "failed": 0, "lacks": 0}
    half = ops.name == "torch" and "interpreter" not in ops.description
    for case in cases():
        if options.operation and case.operation.partition(":")[0] != options.operation:
            continue
        missing = lacking(case, ops)
        try:
            wrong = "" if missing else failure(case, ops, half)
        except Exception as error:
            wrong = f"raises {type(error).__name__}: {error}"
        outcome = "lacks" if missing else "failed" if wrong else "passed"
        counts[outcome] += 1
        print(f"{outcome:7} {case.name}{f': {wrong or missing}' if wrong or missing else ''}", flush=True)
    print(f"{ops.description}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
