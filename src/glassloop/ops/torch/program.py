"""Runs a recorded forward pass on the device.

Steps in which every branch has one row run as CUDA graphs, captured for a few numbers of rows; such a batch
is filled up with rows whose results are not used, which write to a page of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from glassloop.ops.batch import PAGE, Batch
from glassloop.ops.exact import sin_cos
from glassloop.ops.quant import Float32
from glassloop.ops.torch import few_rows
from glassloop.ops.torch.device import (
    DEVICE,
    HALF,
    INTERPRETED,
    check_room,
    keeps_packed,
    memory_errors,
    shared_memory,
    tma_processors,
)
from glassloop.ops.torch.kernels import adapter, attention, linear, pointwise
from glassloop.ops.torch.kernels import rows as rows_kernels
from glassloop.ops.torch.matrix import Packed, TorchMatrix
from glassloop.ops.torch.pages import TorchPages
from glassloop.ops.torch.recorder import (
    RANK_STEP,
    Angles,
    Call,
    Norm,
    Product,
    Recorder,
    Value,
    widest_rank,
)
from glassloop.ops.torch.rows import DeviceRows, Timer
from glassloop.ops.torch.step import ADAPTER_ROWS, UNIT, Heads, Numbers, Step, check_batch, partial_room
from glassloop.ops.torch.tiles import WIDE, tile_for

BLOCK = 64  # keys that attention adds at a time; like UNIT it decides the bits
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # rows of the captured graphs
ATTENTION = {"num_warps": 4, "num_stages": 2}
KEPT_HEADS = 8  # that one program normalizes and rotates
_AHEAD = 256  # columns of a step up to which a product reads its first weights while the previous kernel runs
_EARLY = 64  # rows up to which a kernel is launched before the previous one has ended
_COLUMNS = 1024  # of one program of an elementwise kernel
_EXPANDED = 512  # rows from which a packed matrix is written in half precision before it is multiplied
_EXPANDED_ROWS = 4  # of a matrix that one program then writes
_POSITIONS = 2048  # whose angles are computed at first


class Program:
    """A recorded forward pass with the memory that it runs in. It runs one batch at a time."""

    def __init__(self, recorder: Recorder, results: list[Value]) -> None:
        self._calls = recorder.calls
        self._homes, self._needs = recorder.lay_out(results)
        self._results = [self._homes[result.id] for result in results]
        self._processors = tma_processors()
        self._shared_memory = shared_memory()
        self._early = False
        self._settings = _prepared(self._calls)
        # Of each call: the method that launches it, whether it computes the wanted rows only, its buffers. (A
        # bound method would keep this program alive.)
        self._launches = [
            (
                getattr(Program, f"_{'elementwise' if call.kind in pointwise.ELEMENTWISE else call.kind}"),
                call.out.wanted,
                [self._homes[value.id] for value in (call.out, *call.inputs)],
            )
            for call in self._calls
        ]
        attends = [call.settings for call in self._calls if call.kind == "attend"]
        self._head_counts = Heads(
            max([each["heads"] // each["kv_heads"] for each in attends], default=1),
            max([each["kv_heads"] for each in attends], default=1),
            max([_head_block(each["head_dim"]) for each in attends], default=0),
        )
        # The sizes of the embeddings, by the numbers of a batch that look them up.
        self._tables = {
            call.settings["ids"]: call.settings["table"].out for call in self._calls if call.kind == "embed"
        }
        self._numbers = Numbers()
        self._buffers: list[torch.Tensor] = []
        self._capacity = {True: 0, False: 0}  # rows, by `wanted`
        self._partial = torch.empty(0, device=DEVICE)  # sums of attention over one unit each
        self._expanded = torch.empty(0, dtype=HALF, device=DEVICE)  # a packed matrix in half precision
        self._angles: dict[Angles, tuple[torch.Tensor, torch.Tensor]] = {}
        self._positions = 0  # that the angles are computed for
        # By the number of rows and the units of their attention. A graph has the addresses of all that it
        # reads and writes, so graphs are dropped when anything moves.
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._captured_with: tuple[int, Sequence[TorchPages]] = (0, ())
        self._runs = 0
        self._timers = (None, None) if INTERPRETED else (Timer(), Timer())  # of every second run
        self._last: Callable[[], DeviceRows | None] = lambda: (
            None
        )  # the result of the last run, if it is used
        self._one_run = Lock()

    def __call__(self, batch: Batch, pages: Sequence[Any]) -> list[Float32]:
        return [rows.host() for rows in self._results_of(batch, pages)]

    def only(self, batch: Batch, pages: Sequence[Any]) -> DeviceRows:
        """Starts a program that has one result. Returns that before it is computed: reading it waits."""
        return self._results_of(batch, pages)[0]

    def _results_of(self, batch: Batch, pages: Sequence[TorchPages]) -> list[DeviceRows]:
        with self._one_run, torch.inference_mode(), memory_errors(f"a step of {len(batch.tokens)} rows"):
            if (last := self._last()) is not None:
                last.keep()
            self._runs += 1
            wanted, run = len(batch.wanted), self._runs
            timer = self._timers[run % 2]
            if timer is not None:
                timer.start()
            self._run(batch, pages)
            if timer is not None:
                timer.stop()
            made = [
                DeviceRows(self._buffers[home][:wanted], lambda: self._runs - run, timer)
                for home in self._results
            ]
            self._last = ref(made[0]) if len(made) == 1 else lambda: None
            return made

    def _run(self, batch: Batch, pages: Sequence[TorchPages]) -> None:
        check_batch(batch, len(pages), self._tables)
        rows, wanted = len(batch.tokens), len(batch.wanted)
        one_each = len(batch.spans) == rows == wanted and rows <= SIZES[-1]
        captured = one_each and not INTERPRETED and not batch.reach
        size = next(each for each in SIZES if each >= rows) if captured else rows
        units = self._numbers.upload(batch, pages, size, self._head_counts)
        if batch.after is not None:
            self._launch(
                rows_kernels.fill_kernel,
                (triton.cdiv(rows, _COLUMNS),),
                self._numbers.tokens,
                batch.after.predicted,
                rows,
                BLOCK=_COLUMNS,
            )
        self._make_room(size, size if captured else wanted, max(batch.positions) + 1, pages)
        if captured:
            self._replay((size, *units), pages)
        else:
            self._compute(self._numbers.step(pages))

    def _replay(self, key: tuple[int, ...], pages: Sequence[TorchPages]) -> None:
        if key not in self._graphs:
            step = self._numbers.step(pages)
            self._compute(step)  # compiles kernels and makes room, which a capture cannot
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._compute(step)
            self._graphs[key] = graph
        self._graphs[key].replay()

    def _make_room(self, rows: int, wanted: int, positions: int, pages: Sequence[TorchPages]) -> None:
        """Makes the buffers and the tables of angles large enough."""
        captured_with = self._numbers.moves, list(pages)
        if captured_with != self._captured_with:
            self._captured_with = captured_with
            self._graphs.clear()
        if positions > self._positions:
            self._positions = max(_POSITIONS, 2 * positions)
            self._angles.clear()
            self._graphs.clear()
        # At first for the largest graph; but a lens has many results, each with a buffer as wide as the
        # vocabulary, and mostly of one row.
        least = 1 if INTERPRETED or len(self._results) > 1 else SIZES[-1]
        capacity = dict(self._capacity)
        for number, is_wanted in ((rows, False), (wanted, True)):
            if number > capacity[is_wanted]:
                capacity[is_wanted] = max(number, least, 2 * capacity[is_wanted])
        if capacity != self._capacity:
            self._graphs.clear()
            # The old buffers are freed first. If there is no room for new ones, the next step tries again.
            self._buffers, self._capacity = [], {True: 0, False: 0}
            kinds = {True: HALF, False: torch.float32}
            self._buffers = [
                torch.empty((capacity[need.wanted], need.width), dtype=kinds[need.half], device=DEVICE)
                for need in self._needs
            ]
            self._capacity = capacity

    def _make_partial(self, step: Step) -> None:
        """Makes room for the sums of attention over single units."""
        needed = max([partial_room(tiles, self._head_counts) for tiles in step.tiles])
        if needed > self._partial.numel():
            self._partial = torch.empty(needed, device=DEVICE)
            self._graphs.clear()

    # ── calls ──────────────────────────────────────────────────────────────────────────────────────────────

    def _compute(self, step: Step) -> None:
        self._make_partial(step)
        self._early = self._processors > 0 and step.rows <= _EARLY
        buffers = self._buffers
        for (method, wanted, homes), settings in zip(self._launches, self._settings, strict=True):
            rows = step.wanted if wanted else step.rows
            if rows:
                method(self, step, rows, *[buffers[home] for home in homes], **settings)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
        """Launches a kernel, compiled without contraction of a product and a sum."""
        if "EARLY" in kernel.arg_names:
            settings["EARLY"] = self._early
            if self._early:
                settings["launch_pdl"] = True
        kernel[grid](*arguments, enable_fp_fusion=False, **settings)

    def _embed(self, step: Step, rows: int, out: Any, *, table: Any, ids: str) -> None:
        width = out.shape[1]
        grid = (rows, triton.cdiv(width, _COLUMNS))
        settings = {"BLOCK": _COLUMNS}
        if isinstance(table, Packed):
            settings |= _packed_settings(table) | {"HALVED": HALF is torch.bfloat16}
            table = table.codes
        self._launch(pointwise.embed_kernel, grid, step.ids[ids], table, out, width, **settings)

    def _take(self, step: Step, rows: int, out: Any, x: Any) -> None:
        width = out.shape[1]
        grid = (rows, triton.cdiv(width, _COLUMNS))
        wanted = step.ids["wanted"]
        self._launch(pointwise.take_kernel, grid, x, wanted, out, width, x.stride(0), BLOCK=_COLUMNS)

    def _norm(self, step: Step, rows: int, out: Any, x: Any, *, norm: Norm) -> None:
        width = out.shape[1]
        block = triton.next_power_of_2(width)
        self._launch(
            pointwise.norm_kernel,
            (rows,),
            x,
            norm.weight,
            norm.weight if norm.bias is None else norm.bias,
            out,
            width,
            x.stride(0),
            norm.eps,
            BLOCK=block,
            CENTRED=norm.bias is not None,
            num_warps=8 if block >= 4096 else 4,
        )

    def _linear(
        self,
        step: Step,
        rows: int,
        out: Any,
        x: Any,
        added: Any = None,
        *,
        weight: Any,
        bias: Any,
        gated: bool = False,
        activation: int = 0,
    ) -> None:
        if few_rows.can_compute(self._processors, rows, x, added, weight, gated, activation):
            assert isinstance(weight, Packed)
            early, processors = self._early, self._processors
            few_rows.launch(processors, rows, out, x, added, weight, bias, gated, activation, early)
            return
        width, columns = out.shape[1], weight.shape[1]
        packed: dict[str, Any] = {}
        if isinstance(weight, Packed):
            if rows >= _EXPANDED:
                weight = self._expand(weight)
            else:
                packed, weight = _packed_settings(weight), weight.codes
        weight_rows = 2 * width if gated else width
        tile = tile_for(rows, weight_rows, gated, self._shared_memory, bool(packed))
        tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(weight_rows, tile.width)
        settings = {
            "ROWS": tile.rows,
            "WIDTH": tile.width,
            "STEP": tile.step,
            "BIASED": bias is not None,
            "ADDED": added is not None,
            "GATED": gated,
            "ACTIVATION": activation,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }
        # An argument that a kernel does not read is any array.
        bias, residual = weight if bias is None else bias, out if added is None else added
        sizes = (bias, residual, out, rows, width, columns, residual.stride(0), out.stride(0))
        if self._processors and rows >= WIDE and columns % 8 == 0 and not packed:
            self._launch(
                linear.wide_linear_kernel,
                (min(tiles, self._processors),),
                TensorDescriptor(x, [rows, columns], [x.stride(0), 1], [tile.rows, tile.step]),
                TensorDescriptor(weight, list(weight.shape), [columns, 1], [tile.width, tile.step]),
                *sizes,
                **settings,
            )
        else:
            even = columns % tile.step == 0
            ahead = self._early and even and rows <= 16 and tile.step <= _AHEAD and not packed
            settings |= {"SWAPPED": tile.swapped, "EVEN": even, "AHEAD": ahead, **packed}
            self._launch(linear.linear_kernel, (tiles,), x, weight, *sizes, x.stride(0), **settings)

    def _expand(self, weight: Packed) -> torch.Tensor:
        """Returns a packed matrix in half precision, until the next call. For many rows, this costs less than
        unpacking it for each tile of rows."""
        rows, columns = weight.shape
        if self._expanded.numel() < rows * columns:
            self._expanded = torch.empty(rows * columns, dtype=HALF, device=DEVICE)
        out = self._expanded[: rows * columns].view(rows, columns)
        grid = triton.cdiv(rows, _EXPANDED_ROWS), triton.cdiv(columns, _COLUMNS)
        settings = _packed_settings(weight)
        scales, minimums = settings.pop("scales"), settings.pop("minimums")
        self._launch(
            linear.expand_kernel,
            grid,
            weight.codes,
            scales,
            minimums,
            out,
            rows,
            columns,
            ROWS=_EXPANDED_ROWS,
            STEP=_COLUMNS,
            **settings,
        )
        return out

    def _down(self, step: Step, rows: int, out: Any, x: Any, *, weight: Any, places: Any) -> None:
        self._low_rank(step, x, weight, None, out, places)

    def _up(
        self, step: Step, rows: int, out: Any, onto: Any, x: Any, *, weight: Any, scales: Any, places: Any
    ) -> None:
        """Adds the product to `out`. The recorder names it twice, as the input `onto` and the output."""
        self._low_rank(step, x, weight, scales, out, places)

    def _low_rank(self, step: Step, x: Any, weight: Any, scales: Any, out: Any, places: Any) -> None:
        """Computes the product with one of the matrices of the adapters: with scales, the second one."""
        tiles, up = step.adapter_tiles, scales is not None
        assert tiles is not None
        width, columns = weight.shape[1:]
        outputs = 64 if up else RANK_STEP
        self._launch(
            adapter.low_rank_kernel,
            (len(tiles.rows), triton.cdiv(width, outputs)),
            x,
            weight,
            scales if up else weight,  # an argument that a kernel does not read is any array
            out,
            step.ids["adapters"],
            places,
            *tiles,
            width,
            columns,
            x.stride(0),
            out.stride(0),
            ROWS=ADAPTER_ROWS,
            WIDTH=outputs,
            STEP=RANK_STEP if up else 128,
            UP=up,
            num_warps=4 if up else 1,
        )

    def _heads(self, step: Step, rows: int, out: Any, x: Any, *, product: Product) -> None:
        self._launch(
            pointwise.heads_kernel,
            (rows, product.heads),
            x=x,
            positions=step.ids["positions"],
            out=out,
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            num_warps=1,
            **self._head_settings(product, x),
        )

    def _keep(
        self, step: Step, rows: int, out: Any, x: Any, *, query: Product, key: Product, group: int, layer: int
    ) -> None:
        pages, key_norm = step.pages[group], key.norm
        self._launch(
            pointwise.keep_kernel,
            (rows, triton.cdiv(query.heads, KEPT_HEADS) + triton.cdiv(key.heads, KEPT_HEADS)),
            x=x,
            queries=out,
            key_weight=x if key_norm is None else key_norm.weight,
            key_bias=x if key_norm is None or key_norm.bias is None else key_norm.bias,
            positions=step.ids["positions"],
            slots=step.slots,
            row_table=step.row_table,
            row_stride=step.row_stride,
            tables=step.tables,
            keys=pages.keys,
            values=pages.values,
            x_stride=x.stride(0),
            query_stride=out.stride(0),
            heads=query.heads,
            kv_heads=key.heads,
            page_stride=pages.keys.stride(0),
            layer_offset=layer * pages.keys.stride(1),
            group=group,
            PAGE=PAGE,
            HEADS=KEPT_HEADS,
            REACHING=step.reach is not None,
            num_warps=KEPT_HEADS,
            **self._head_settings(query, x),
        )

    def _head_settings(self, product: Product, x: Any) -> dict[str, Any]:
        """Returns the arguments that kernels of heads take from a product: the width of a head, its norm and
        its rotation."""
        norm, head_dim = product.norm, product.matrix.out // product.heads
        cosines, sines = (x, x) if product.angles is None else self._angles_of(product.angles)
        return {
            "weight": x if norm is None else norm.weight,
            "bias": x if norm is None or norm.bias is None else norm.bias,
            "cosines": cosines,
            "sines": sines,
            "head_dim": head_dim,
            "half": 0 if product.angles is None else cosines.shape[1],
            "eps": 0.0 if norm is None else norm.eps,
            "BLOCK": triton.next_power_of_2(head_dim),
            "NORM": 0 if norm is None else 1 if norm.bias is None else 2,
            "ROTATED": product.angles is not None,
        }

    def _angles_of(self, angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and sines by position: each [positions, half of the rotated width]."""
        if angles not in self._angles:
            turns = np.arange(self._positions, dtype=np.float32)[:, None] * angles.frequencies
            # NumPy's own sine and cosine differ between processors; the record names the GPU alone.
            turned = reversed(sin_cos(turns.astype(np.float64)))
            cosines, sines = (
                torch.from_numpy(each.astype(np.float32) * np.float32(angles.factor)).to(DEVICE)
                for each in turned
            )
            self._angles[angles] = cosines, sines
        return self._angles[angles]

    def _attend(
        self,
        step: Step,
        rows: int,
        out: Any,
        queries: Any,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        group: int,
        layer: int,
        scale: float,
        window: int,
        softcap: float,
    ) -> None:
        pages, reach = step.pages[group], step.slots if step.reach is None else step.reach
        for tiles in step.tiles:
            grid = (len(tiles.rows), kv_heads)
            settings = {
                "UNIT": UNIT,
                "QUERIES": tiles.queries,
                "HEAD": _head_block(head_dim),
                "GROUP": heads // kv_heads,
                "WINDOWED": window > 0,
                "REACHING": step.reach is not None,
            }
            cut = (step.slots, reach, tiles.rows, tiles.counts, queries.stride(0), head_dim, window)
            self._launch(
                attention.attend_kernel,
                (*grid, tiles.units) if tiles.units else grid,
                queries,
                out,
                self._partial,
                *cut,
                pages.keys,
                pages.values,
                step.row_table,
                step.row_stride,
                step.tables,
                pages.keys.stride(0),
                layer * pages.keys.stride(1),
                group,
                scale,
                softcap,
                PAGE=PAGE,
                BLOCK=BLOCK,
                CAPPED=softcap > 0,
                SPLIT=tiles.units > 0,
                **ATTENTION,
                **settings,
            )
            if tiles.units:
                merge = attention.merge_kernel
                self._launch(
                    merge, grid, queries, out, self._partial, *cut, tiles.units, num_warps=4, **settings
                )

    def _elementwise(
        self,
        step: Step,
        rows: int,
        out: Any,
        x: Any,
        y: Any = None,
        *,
        kind: int,
        factor: float = 0.0,
        activation: int = 0,
        both: bool = False,
    ) -> None:
        """Computes an operation on x and perhaps y. If `both`, x has the columns of both in turn."""
        width = out.shape[1]
        if both:
            x, y = x[:, 0::2], x[:, 1::2]
        y = x if y is None else y
        self._launch(
            pointwise.elementwise_kernel,
            (rows, triton.cdiv(width, _COLUMNS)),
            x,
            y,
            out,
            width,
            x.stride(0),
            y.stride(0),
            factor,
            SPACING=2 if both else 1,
            KIND=kind,
            ACTIVATION=activation,
            BLOCK=_COLUMNS,
        )


def _prepared(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Returns the settings of calls with the weights on the device; raises if these do not fit there."""
    matrices = {
        matrix
        for call in calls
        for matrix in (
            [call.settings["table"]]
            if call.kind == "embed"
            else [product.matrix for product in call.settings.get("products", ())]
        )
    }
    expanded, packed = (sum(matrix.missing_bytes(each) for matrix in matrices) for each in (False, True))
    stay_packed = keeps_packed(expanded, packed)
    check_room("the model", packed if stay_packed else expanded)
    for matrix in matrices:
        matrix.stays_packed |= stay_packed
    return [_with_weights(call) for call in calls]


def _with_weights(call: Call) -> dict[str, Any]:
    settings = dict(call.settings)
    if call.kind == "embed":
        settings["table"] = settings["table"].stored
    elif call.kind == "linear":
        products = settings.pop("products")
        biases = [product.bias for product in products]
        in_turn = settings.pop("in_turn", False) or settings.get("gated", False)
        settings["weight"] = TorchMatrix.joined([product.matrix for product in products], in_turn)
        settings["bias"] = None
        if any(bias is not None for bias in biases):
            zeros = [torch.zeros(product.matrix.out, device=DEVICE) for product in products]
            given = [zero if bias is None else bias for zero, bias in zip(zeros, biases, strict=True)]
            settings["bias"] = torch.stack(given, 1).flatten() if in_turn else torch.cat(given)
    elif call.kind in ("down", "up"):
        settings = _low_rank(call.kind, settings["products"], settings.get("in_turn", False))
    elif call.kind in pointwise.ELEMENTWISE:
        settings["kind"] = pointwise.ELEMENTWISE.index(call.kind)
    return settings


def _packed_settings(weight: Packed) -> dict[str, Any]:
    """Returns the arguments of a kernel that say how a matrix is packed."""
    # An argument that a kernel does not read is any array.
    minimums = weight.scale if weight.minimum is None else weight.minimum
    return {
        "scales": weight.scale,
        "minimums": minimums,
        "BITS": weight.bits,
        "ZERO": weight.zero,
        "GROUP": weight.group,
        "MINIMUM": weight.minimum is not None,
    }


def _low_rank(kind: str, products: Sequence[Product], in_turn: bool) -> dict[str, Any]:
    """Returns the matrices of all adapters of some products on the device: `down` has those of the products
    one below the other, [adapters, products * rank, in]; `up` has them along the diagonal, [adapters, out,
    products * rank], with zeros beside them, which add nothing, or, if `in_turn`, the rows of one product and
    of the other in turn. An adapter with a lower rank is filled up
    with zeros. `places` has the place of each adapter's matrices, by its number."""
    rank, outs = widest_rank(products), [product.matrix.out for product in products]
    numbers = range(max(len(product.parts or ()) for product in products))
    places = np.full(len(numbers), -1, np.int32)
    matrices: list[torch.Tensor] = []
    scales: list[float] = []
    for number in numbers:
        parts = [product.parts[number] if product.parts else None for product in products]
        if not any(part is not None for part in parts):
            continue
        places[number] = len(matrices)
        height, width = len(products) * rank, products[0].matrix.into
        made = np.zeros((height, width) if kind == "down" else (sum(outs), height), np.float32)
        for at, part in enumerate(parts):
            if part is None:
                continue
            columns = slice(at * rank, at * rank + part.down.shape[0])
            if kind == "down":
                made[columns] = part.down.float32()
            else:
                own = slice(at, None, 2) if in_turn else slice(sum(outs[:at]), sum(outs[: at + 1]))
                made[own, columns] = part.up.float32()
        matrices.append(torch.from_numpy(made).to(HALF))
        scales.append(next(part.scale for part in parts if part is not None))
    found = {"weight": torch.stack(matrices).to(DEVICE), "places": torch.from_numpy(places).to(DEVICE)}
    return found if kind == "down" else found | {"scales": torch.tensor(scales, device=DEVICE)}


def _head_block(head_dim: int) -> int:
    """Returns the columns of a head in attention: a power of two, as large as the tensor cores need."""
    return int(max(16, triton.next_power_of_2(head_dim)))
