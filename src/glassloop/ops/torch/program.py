"""Runs a recorded forward pass on the device.

A batch is uploaded as one array of numbers and its results come back in one copy. Steps in which every branch has
one row run as CUDA graphs, captured for a few numbers of rows; such a batch is filled up with rows that no one
reads, which write to a page of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from glassloop.ops.batch import PAGE, Batch, BatchError, check_page, check_spans, pages_for
from glassloop.ops.quant import Float32
from glassloop.ops.torch.kernels import attention, linear, pointwise
from glassloop.ops.torch.pages import TorchPages
from glassloop.ops.torch.recorder import Angles, Call, Product, Recorder, Value
from glassloop.ops.torch.tiles import WIDE, tile_for

UNIT, BLOCK = 256, 64  # positions; the sums of attention are defined by them
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # rows of the captured graphs
_FEW, _MANY = 16, 64  # queries of one program, for short and long spans
_PROGRAMS = 264  # fewer programs than this leave the device idle: then each computes one unit only
_ALIGNED = 32  # numbers: parts of an array that begin at multiples of it need no second version of a kernel
_EARLY = 64  # rows up to which a kernel is launched before the one before it has ended
ATTENDING = {"num_warps": 4, "num_stages": 3}
_EXACT = {"enable_fp_fusion": False}  # a product and a sum are never contracted


class Tiles(NamedTuple):
    rows: torch.Tensor  # the first row of each tile
    counts: torch.Tensor
    queries: int
    units: int  # how many units the longest branch has


class Step(NamedTuple):
    """One batch on the device."""

    rows: int
    wanted: int
    ids: dict[str, torch.Tensor]  # tokens, positions and wanted rows
    row_table: torch.Tensor  # where the page tables of the row's branch begin
    row_stride: torch.Tensor  # the number of pages in each of them
    tables: torch.Tensor
    tiles: list[Tiles]
    pages: Sequence[TorchPages]


class Program:
    """A recorded forward pass with the memory that it runs in. It runs one batch at a time."""

    def __init__(
        self, recorder: Recorder, results: list[Value], device: torch.device, half: torch.dtype
    ) -> None:
        self._calls = recorder.calls
        self._homes, self._needs = recorder.lay_out(results)
        self._results = [self._homes[result.id] for result in results]
        self._device, self._half = device, half
        # The multiprocessors, where they can copy tiles by descriptors.
        self._wide = 0
        if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
            self._wide = torch.cuda.get_device_properties(device).multi_processor_count
        self._weights = [self._weights_of(call) for call in self._calls]
        self._angles: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._positions = 0  # that the angles are computed for
        self._buffers: list[torch.Tensor] = []
        self._capacity = {True: 0, False: 0}  # rows, by `wanted`
        self._partial = torch.empty(0, device=device)
        self._numbers = torch.empty(0, dtype=torch.int32, device=device)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._used: Sequence[TorchPages] = ()
        self._group_size = max(
            [
                call.settings["heads"] // call.settings["kv_heads"]
                for call in self._calls
                if call.kind == "attend"
            ],
            default=1,
        )
        self._one_run = Lock()

    def __call__(self, batch: Batch, pages: Sequence[Any]) -> list[Float32]:
        with self._one_run, torch.inference_mode():
            return self._run(batch, pages)

    def only(self, batch: Batch, pages: Sequence[Any]) -> Float32:
        """Runs a program that has one result, and returns that."""
        return self(batch, pages)[0]

    def _run(self, batch: Batch, pages: Sequence[TorchPages]) -> list[Float32]:
        self._check(batch, pages)
        rows, wanted = len(batch.tokens), len(batch.wanted)
        one_each = len(batch.spans) == rows == wanted and rows <= SIZES[-1]
        captured = one_each and self._device.type == "cuda"
        size = next(each for each in SIZES if each >= rows) if captured else rows
        self._make_room(size, size if captured else wanted, max(batch.positions) + 1, pages)
        step = self._upload(batch, pages, size)
        if captured:
            self._replay(step)
        else:
            self._compute(step)
        results = []
        for home in self._results:
            made = self._buffers[home][:wanted]
            on_host = torch.empty(made.shape, dtype=made.dtype, pin_memory=captured)
            results.append(on_host.copy_(made, non_blocking=captured))
        if captured:
            torch.cuda.current_stream().synchronize()
        return [result.float().numpy() for result in results]

    def _replay(self, step: Step) -> None:
        key = (step.rows, step.tiles[0].units if self._is_split(step.tiles[0], step) else 0)
        if key not in self._graphs:
            self._compute(step)  # compiles what is not compiled yet
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._compute(step)
            self._graphs[key] = graph, step
        self._graphs[key][0].replay()

    # ── a batch ────────────────────────────────────────────────────────────────────────────────────────────

    def _check(self, batch: Batch, pages: Sequence[TorchPages]) -> None:
        """Raises if a number of the batch is out of range. A kernel would read what is not its own."""
        check_spans(batch, len(pages))
        rows = len(batch.tokens)
        if batch.wanted and (min(batch.wanted) < 0 or max(batch.wanted) >= rows):
            raise BatchError(f"rows {batch.wanted} are wanted; there are {rows}")
        for call in self._calls:
            if call.kind == "embed":
                ids, size = getattr(batch, call.settings["ids"]), call.settings["table"].out
                if min(ids) < 0 or max(ids) >= size:
                    wrong = next(id for id in ids if not 0 <= id < size)
                    raise BatchError(f"a row has the number {wrong}; one from 0 to {size - 1} is expected")
        for number, (start, stop, first, _) in enumerate(batch.spans):
            positions = batch.positions[start:stop]
            if positions != list(range(first, first + stop - start)):
                raise BatchError(f"span {number} has positions that are not its own")
        for group, own in enumerate(pages):
            used = np.concatenate([span.pages[group, : pages_for(span.length)] for span in batch.spans])
            check_page(int(used.min()), own.count)
            check_page(int(used.max()), own.count)

    def _make_room(self, rows: int, wanted: int, positions: int, pages: Sequence[TorchPages]) -> None:
        """Makes the buffers large enough. Graphs know the addresses of what they use, so they go if it moves."""
        moved = list(pages) != list(self._used)
        self._used = list(pages)
        for number, is_wanted in ((rows, False), (wanted, True)):
            if number > self._capacity[is_wanted]:
                least = SIZES[-1] if self._device.type == "cuda" else 1
                self._capacity[is_wanted] = max(number, least, 2 * self._capacity[is_wanted])
                moved = True
        if moved:
            kinds = {True: self._half, False: torch.float32}
            self._buffers = [
                torch.empty(
                    (self._capacity[need.wanted], need.width), dtype=kinds[need.half], device=self._device
                )
                for need in self._needs
            ]
        if positions > self._positions:
            self._positions = max(2048, 2 * positions)
            self._angles.clear()
            moved = True
        if moved:
            self._graphs.clear()

    def _upload(self, batch: Batch, pages: Sequence[TorchPages], size: int) -> Step:
        """Copies a batch to the device, filled up to `size` rows."""
        rows, filling = len(batch.tokens), size - len(batch.tokens)
        counts, strides, lengths = np.array(
            [(span.stop - span.start, span.pages.shape[1], span.pages.size) for span in batch.spans]
            + [(filling, 1, len(pages))],
            np.int32,
        ).T
        table_at = np.cumsum(lengths) - lengths
        spare = [group.count for group in pages]  # the page that filling rows write to
        tiles, longest = self._tiles_of(batch, size)
        nothing = np.zeros(filling, np.int32)
        parts: list[Any] = [
            np.concatenate([batch.tokens, nothing]),
            np.concatenate([batch.positions, nothing]),
            np.repeat(table_at, counts),
            np.repeat(strides, counts),
            np.concatenate([batch.wanted, np.arange(rows, size)]) if filling else batch.wanted,
            *[part for tile_rows, tile_counts, _ in tiles for part in (tile_rows, tile_counts)],
            np.concatenate([*(span.pages.reshape(-1) for span in batch.spans), spare]),
        ]
        at = [0]
        for part in parts:
            at.append(-(-(at[-1] + len(part)) // _ALIGNED) * _ALIGNED)
        if at[-1] > len(self._numbers):
            self._graphs.clear()
            self._numbers = torch.empty(max(2 * at[-1], 1 << 16), dtype=torch.int32, device=self._device)
        pinned = self._device.type == "cuda"
        numbers = torch.empty(at[-1], dtype=torch.int32, pin_memory=pinned)
        view = numbers.numpy()
        for start, part in zip(at, parts, strict=False):
            view[start : start + len(part)] = part
        self._numbers[: at[-1]].copy_(numbers, non_blocking=pinned)
        placed = [self._numbers[start : start + len(part)] for start, part in zip(at, parts, strict=False)]
        tokens, positions, row_table, row_stride, wanted, *tile_parts, _ = placed
        units = -(-longest // UNIT)
        return Step(
            size,
            len(wanted),
            {"tokens": tokens, "positions": positions, "wanted": wanted},
            row_table,
            row_stride,
            self._numbers[at[len(parts) - 1] :],
            [
                Tiles(tile_parts[2 * i], tile_parts[2 * i + 1], queries, 1 << (units - 1).bit_length())
                for i, (_, _, queries) in enumerate(tiles)
            ],
            pages,
        )

    def _tiles_of(self, batch: Batch, size: int) -> tuple[list[tuple[Any, Any, int]], int]:
        """Returns the tiles of short and of long spans (first rows, numbers of rows, queries of a program), and
        the length of the longest branch."""
        longest = max(span.length for span in batch.spans)
        group = self._group_size
        few, many = (max(most, triton.next_power_of_2(group)) for most in (_FEW, _MANY))
        if len(batch.spans) == len(batch.tokens):
            return [(np.arange(size), np.ones(size, np.int64), few)], longest
        tiles = []
        for queries, spans in (
            (few, [span for span in batch.spans if (span.stop - span.start) * group <= few]),
            (many, [span for span in batch.spans if (span.stop - span.start) * group > few]),
        ):
            at_once = queries // group
            starts = [(at, span.stop) for span in spans for at in range(span.start, span.stop, at_once)]
            if starts:
                tiles.append(
                    ([at for at, _ in starts], [min(at_once, stop - at) for at, stop in starts], queries)
                )
        return tiles, longest

    # ── calls ──────────────────────────────────────────────────────────────────────────────────────────────

    def _weights_of(self, call: Call) -> Any:
        """Returns what a call reads besides its inputs, on the device."""
        from glassloop.ops.torch.ops import TorchMatrix

        if call.kind == "embed":
            return call.settings["table"].values
        if call.kind != "linear":
            return None
        matrices, biases = call.settings["matrices"], call.settings["biases"]
        bias = None
        if any(each is not None for each in biases):
            zeros = [torch.zeros(matrix.out, device=self._device) for matrix in matrices]
            given = [zero if bias is None else bias for zero, bias in zip(zeros, biases, strict=True)]
            bias = torch.cat(given)
        return TorchMatrix.beside(matrices), bias

    def _compute(self, step: Step) -> None:
        early = self._wide > 0 and step.rows <= _EARLY
        self._early: dict[str, Any] = {"EARLY": early, **({"launch_pdl": True} if early else {}), **_EXACT}
        for call, weights in zip(self._calls, self._weights, strict=True):
            rows = step.wanted if call.out.wanted else step.rows
            if not rows:
                continue
            out = self._buffers[self._homes[call.out.id]]
            inputs = [self._buffers[self._homes[value.id]] for value in call.inputs]
            getattr(self, f"_{call.kind}")(call.settings, weights, step, rows, out, *inputs)

    def _embed(self, given: Any, table: Any, step: Step, rows: int, out: Any) -> None:
        width = out.shape[1]
        grid = (rows, triton.cdiv(width, 1024))
        pointwise.embed_kernel[grid](step.ids[given["ids"]], table, out, width, BLOCK=1024, **_EXACT)

    def _take(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        width = out.shape[1]
        grid = (rows, triton.cdiv(width, 1024))
        pointwise.take_kernel[grid](x, step.ids["wanted"], out, width, x.stride(0), BLOCK=1024, **self._early)

    def _norm(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        bias, width = given["bias"], out.shape[1]
        block = triton.next_power_of_2(width)
        pointwise.norm_kernel[(rows,)](
            x,
            given["weight"],
            given["weight"] if bias is None else bias,
            out,
            width,
            x.stride(0),
            given["eps"],
            BLOCK=block,
            CENTRED=bias is not None,
            BIASED=bias is not None,
            num_warps=8 if block >= 4096 else 4,
            **self._early,
        )

    def _linear(
        self, given: Any, weights: Any, step: Step, rows: int, out: Any, x: Any, added: Any = None
    ) -> None:
        weight, bias = weights
        width, columns = out.shape[1], weight.shape[1]
        gated = given.get("gated", False)
        tile = tile_for(rows, width, gated)
        tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(width, tile.width)
        about = {
            "ROWS": tile.rows,
            "WIDTH": tile.width,
            "STEP": tile.step,
            "BIASED": bias is not None,
            "ADDED": added is not None,
            "GATED": gated,
            "ACTIVATION": given.get("activation", 0),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **_EXACT,
        }
        bias, residual = weight if bias is None else bias, out if added is None else added
        if self._wide and rows >= WIDE and columns % 8 == 0:
            linear.wide_linear_kernel[(min(tiles, self._wide),)](
                TensorDescriptor(x, [rows, columns], [x.stride(0), 1], [tile.rows, tile.step]),
                TensorDescriptor(weight, list(weight.shape), [columns, 1], [tile.width, tile.step]),
                bias,
                residual,
                out,
                rows,
                width,
                columns,
                residual.stride(0),
                out.stride(0),
                **about,
            )
            return
        linear.linear_kernel[(tiles,)](
            x,
            weight,
            bias,
            residual,
            out,
            rows,
            width,
            columns,
            x.stride(0),
            residual.stride(0),
            out.stride(0),
            SWAPPED=tile.swapped,
            EVEN=columns % tile.step == 0,
            **(about | self._early),
        )

    def _about_heads(self, about: Product, x: Any) -> dict[str, Any]:
        """Returns what the kernels of heads take from a product: the width of a head, its norm and rotation."""
        cosines, sines = (x, x) if about.angles is None else self._angles_of(about.angles)
        norm = about.norm
        head_dim = about.matrix.out // about.heads
        return {
            "weight": x if norm is None else norm.weight,
            "bias": x if norm is None or norm.bias is None else norm.bias,
            "cosines": cosines,
            "sines": sines,
            "head_dim": head_dim,
            "half": 0 if about.angles is None else cosines.shape[1],
            "eps": 0.0 if norm is None else norm.eps,
            "BLOCK": triton.next_power_of_2(head_dim),
            "NORM": 0 if norm is None else 2 if norm.bias is not None else 1,
            "BIASED": norm is not None and norm.bias is not None,
            "ROTATED": about.angles is not None,
        }

    def _angles_of(self, angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
        if id(angles) not in self._angles:
            turns = np.arange(self._positions, dtype=np.float32)[:, None] * angles.frequencies
            factor = np.float32(angles.factor)
            tables = (np.cos(turns) * factor, np.sin(turns) * factor)
            made = [torch.from_numpy(each).to(self._device) for each in tables]
            self._angles[id(angles)] = made[0], made[1]
        return self._angles[id(angles)]

    def _heads(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        about: Product = given["about"]
        pointwise.heads_kernel[(rows, about.heads)](
            x=x,
            positions=step.ids["positions"],
            out=out,
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            num_warps=1,
            **self._about_heads(about, x),
            **_EXACT,
        )

    def _keep(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        query: Product = given["query"]
        key: Product = given["key"]
        pages = step.pages[given["group"]]
        about, key_norm = self._about_heads(query, x), key.norm
        pointwise.keep_kernel[(rows, query.heads + key.heads)](
            x=x,
            queries=out,
            key_weight=x if key_norm is None else key_norm.weight,
            key_bias=x if key_norm is None or key_norm.bias is None else key_norm.bias,
            positions=step.ids["positions"],
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
            layer_offset=given["layer"] * pages.keys.stride(1),
            group=given["group"],
            PAGE=PAGE,
            num_warps=1,
            **about,
            **self._early,
        )

    def _is_split(self, tiles: Tiles, step: Step) -> bool:
        """Returns whether each program computes one unit: where there are few programs and several units."""
        kv_heads = step.pages[0].spec.kv_heads
        return tiles.units > 1 and len(tiles.rows) * kv_heads < _PROGRAMS

    def _attend(self, given: Any, _: Any, step: Step, rows: int, out: Any, queries: Any) -> None:
        pages = step.pages[given["group"]]
        head_dim, kv_heads = pages.spec.head_dim, given["kv_heads"]
        group, window = given["heads"] // kv_heads, given["window"]
        head = max(16, triton.next_power_of_2(head_dim))
        for tiles in step.tiles:
            grid: tuple[int, ...] = (len(tiles.rows), kv_heads)
            split = self._is_split(tiles, step)
            if split:
                needed = len(tiles.rows) * kv_heads * tiles.units * tiles.queries * (head + 17)
                if needed > self._partial.numel():
                    self._partial = torch.empty(needed, device=self._device)
                    self._graphs.clear()
                grid = (*grid, tiles.units)
            about = {
                "UNIT": UNIT,
                "QUERIES": tiles.queries,
                "HEAD": head,
                "GROUP": group,
                "WINDOWED": window > 0,
            }
            both = (step.ids["positions"], tiles.rows, tiles.counts, queries.stride(0), head_dim, window)
            positions, tile_row, tile_count, stride, *_rest = both
            attention.attend_kernel[grid](
                queries,
                pages.keys,
                pages.values,
                out,
                self._partial,
                positions,
                step.row_table,
                step.row_stride,
                step.tables,
                tile_row,
                tile_count,
                stride,
                pages.keys.stride(0),
                given["layer"] * pages.keys.stride(1),
                given["group"],
                head_dim,
                given["scale"],
                given["softcap"],
                window,
                PAGE=PAGE,
                BLOCK=BLOCK,
                CAPPED=given["softcap"] > 0,
                SPLIT=split,
                **ATTENDING,
                **about,
                **self._early,
            )
            if split:
                attention.merge_kernel[grid[:2]](
                    queries, out, self._partial, positions, tile_row, tile_count, stride, head_dim, window, tiles.units,
                    num_warps=4, **about, **self._early,
                )  # fmt: skip

    def _elementwise(
        self, kind: int, rows: int, out: Any, x: Any, y: Any = None, factor: float = 0.0, activation: int = 0
    ) -> None:
        width = out.shape[1]
        y = x if y is None else y
        pointwise.elementwise_kernel[(rows, triton.cdiv(width, 1024))](
            x,
            y,
            out,
            width,
            x.stride(0),
            y.stride(0),
            factor,
            KIND=kind,
            ACTIVATION=activation,
            BLOCK=1024,
            **_EXACT,
        )

    def _add(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any, y: Any) -> None:
        self._elementwise(0, rows, out, x, y)

    def _scale(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        self._elementwise(1, rows, out, x, factor=given["factor"])

    def _softcap(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        self._elementwise(2, rows, out, x, factor=given["factor"])

    def _activate(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        self._elementwise(3, rows, out, x, activation=given["activation"])

    def _gate(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any, y: Any) -> None:
        self._elementwise(4, rows, out, x, y, activation=given["activation"])

    def _cast(self, given: Any, _: Any, step: Step, rows: int, out: Any, x: Any) -> None:
        self._elementwise(5, rows, out, x)
