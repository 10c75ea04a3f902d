"""Launches the kernels of a recorded forward pass: a method of `Launcher` for each kind of call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from glassloop.ops.batch import PAGE
from glassloop.ops.exact import log_normal, sin_cos
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.kernels import adapter, attention, pointwise
from glassloop.ops.torch.kernels import rows as rows_kernels
from glassloop.ops.torch.kernels.packed import embed_packed_kernel
from glassloop.ops.torch.matrix import MatrixProduct
from glassloop.ops.torch.packed import PackedMatrix
from glassloop.ops.torch.products import Products
from glassloop.ops.torch.recorder import RANK_STEP, Angles, Product, RecordedNorm, SplitHeads
from glassloop.ops.torch.row_tiles import ADAPTER_ROWS, DIVIDED, UNIT, Heads, partial_room
from glassloop.ops.torch.step import DeviceStep
from glassloop.ops.torch.tiles import cdiv, next_power_of_2

BLOCK = 64  # keys that attention adds at a time; like UNIT it decides the bits
ATTENTION = {"num_warps": 4, "num_stages": 2}
KEPT_HEADS = 8  # that one program normalizes and rotates
_EARLY = 64  # rows up to which a kernel is launched before the previous one has ended
_COLUMNS = 1024  # of one program of an elementwise kernel
_POSITIONS = 2048  # whose angles are computed at first


class Launcher:
    """Launches the kernels of calls on the device, and has the memory that several calls use: tables of
    angles, the sums of attention over single units."""

    def __init__(self, device: Device) -> None:
        self._device = device.torch
        self._products = Products(device)
        self._early = False  # whether kernels are launched before the previous one has ended
        self._partial = torch.empty(0, device=self._device)  # sums of attention over one unit each
        # How many programs of a tile and head have computed their units.
        self._arrived = torch.zeros(DIVIDED, dtype=torch.int32, device=self._device)
        self._angles: dict[Angles, tuple[torch.Tensor, torch.Tensor]] = {}
        self._positions = 0  # that the angles are computed for

    def make_angles(self, positions: int) -> bool:
        """Makes the tables of angles long enough for this many positions. Returns whether they move."""
        if positions <= self._positions:
            return False
        self._positions = max(_POSITIONS, 2 * positions)
        self._angles.clear()
        return True

    def begin(self, step: DeviceStep, heads: Heads) -> bool:
        """Prepares for the calls of a step. Returns True if a buffer was reallocated, which
        invalidates captured graphs."""
        self._early = self._products.processors > 0 and step.rows <= _EARLY
        needed = max([partial_room(tiles, heads) for tiles in step.tiles])
        if needed <= self._partial.numel():
            return False
        self._partial = torch.empty(needed, device=self._device)
        return True

    def end(self) -> bool:
        """Forgets what only the calls of one step use. Returns True if a buffer was reallocated, which
        invalidates captured graphs."""
        return self._products.end()

    def method(self, kind: str) -> Callable[..., None]:
        """Returns the method that launches calls of a kind. It is given the step, the number of rows, the
        buffers of the output and the inputs, and the settings of the call."""
        if kind in pointwise.ELEMENTWISE:
            return partial(self._elementwise, kind=pointwise.ELEMENTWISE.index(kind))
        method: Callable[..., None] = getattr(self, f"_{kind}")
        return method

    def fill_tokens(self, tokens: torch.Tensor, predicted: torch.Tensor, rows: int) -> None:
        """Replaces the tokens -1 - n of a batch by the prediction for line n of the previous choice."""
        grid = (cdiv(rows, _COLUMNS),)
        self._launch(rows_kernels.fill_kernel, grid, tokens, predicted, rows, BLOCK=_COLUMNS)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
        """Launches a kernel, compiled without contraction of a product and a sum."""
        if "EARLY" in kernel.arg_names:
            settings["EARLY"] = self._early
            if self._early:
                settings["launch_pdl"] = True
        kernel[grid](*arguments, enable_fp_fusion=False, **settings)

    def _embed(self, step: DeviceStep, rows: int, out: Any, *, table: Any, ids: str) -> None:
        width = out.shape[1]
        grid = (rows, cdiv(width, _COLUMNS))
        about = {"ids": step.ids[ids], "out": out, "width": width, "BLOCK": _COLUMNS}
        if isinstance(table, PackedMatrix):
            self._launch(embed_packed_kernel, grid, **about, **table.arguments())
        else:
            self._launch(pointwise.embed_kernel, grid, table=table, **about)

    def _take(self, step: DeviceStep, rows: int, out: Any, x: Any) -> None:
        width = out.shape[1]
        grid = (rows, cdiv(width, _COLUMNS))
        wanted = step.ids["wanted"]
        self._launch(pointwise.take_kernel, grid, x, wanted, out, width, x.stride(0), BLOCK=_COLUMNS)

    def _norm(self, step: DeviceStep, rows: int, out: Any, x: Any, *, norm: RecordedNorm) -> None:
        width = out.shape[1]
        block = next_power_of_2(width)
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
        step: DeviceStep,
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
        """Computes x @ weight.T + bias + added or, if gated, activated(x @ gate.T) * (x @ up.T)."""
        product = MatrixProduct(rows, out, x, added, weight, bias, gated, activation)
        self._products.launch(product, self._launch, self._early)

    def _down(self, step: DeviceStep, rows: int, out: Any, x: Any, *, weight: Any, places: Any) -> None:
        self._low_rank(step, x, weight, None, out, places)

    def _up(
        self,
        step: DeviceStep,
        rows: int,
        out: Any,
        onto: Any,
        x: Any,
        *,
        weight: Any,
        scales: Any,
        places: Any,
    ) -> None:
        """Adds the product to `out`. The recorder names it twice, as the input `onto` and the output."""
        self._low_rank(step, x, weight, scales, out, places)

    def _low_rank(self, step: DeviceStep, x: Any, weight: Any, scales: Any, out: Any, places: Any) -> None:
        """Computes the product with one of the matrices of the adapters: with scales, the second one."""
        tiles, up = step.adapter_tiles, scales is not None
        assert tiles is not None
        width, columns = weight.shape[1:]
        outputs = 64 if up else RANK_STEP
        self._launch(
            adapter.low_rank_kernel,
            (len(tiles.rows), cdiv(width, outputs)),
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

    def _join(self, step: DeviceStep, rows: int, out: Any, *parts: Any) -> None:
        """Copies arrays beside each other."""
        torch.cat([part[:rows].to(out.dtype) for part in parts], 1, out=out[:rows])

    def _heads(self, step: DeviceStep, rows: int, out: Any, x: Any, *, product: Product | SplitHeads) -> None:
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
        self,
        step: DeviceStep,
        rows: int,
        out: Any,
        x: Any,
        *,
        query: Product | SplitHeads,
        key: Product | SplitHeads,
        group: int,
        layer: int,
    ) -> None:
        if _attention_keeps(step, query, key):
            return
        pages, key_norm = step.pages[group], key.norm
        self._launch(
            pointwise.keep_kernel,
            (rows, cdiv(query.heads, KEPT_HEADS) + cdiv(key.heads, KEPT_HEADS)),
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

    def _head_settings(self, product: Product | SplitHeads, x: Any) -> dict[str, Any]:
        """Returns the arguments that kernels of heads take from a product: the width of a head, its norm and
        its rotation."""
        norm, head_dim = product.norm, product.width // product.heads
        cosines, sines = (x, x) if product.angles is None else self._angles_of(product.angles)
        return {
            "weight": x if norm is None else norm.weight,
            "bias": x if norm is None or norm.bias is None else norm.bias,
            "cosines": cosines,
            "sines": sines,
            "head_dim": head_dim,
            "half": 0 if product.angles is None else cosines.shape[1],
            "eps": 0.0 if norm is None else norm.eps,
            "BLOCK": next_power_of_2(head_dim),
            "NORM": 0 if norm is None else 1 if norm.bias is None else 2,
            "ROTATED": product.angles is not None,
        }

    def _angles_of(self, angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and sines by position: each [positions, half of the rotated width]."""
        if angles not in self._angles:
            turns = np.arange(self._positions, dtype=np.float32)[:, None] * angles.frequencies
            # NumPy's own sine and cosine differ between processors; the record names the GPU alone.
            turned = reversed(sin_cos(turns.astype(np.float64)))
            factors = np.full((self._positions, 1), angles.factor, np.float32)
            if angles.growth is not None:
                steps = 1 + np.arange(self._positions, dtype=np.int64)[:, None] // angles.growth.step
                grown = 1 + angles.growth.rate * log_normal(steps.astype(np.float64))
                factors *= grown.astype(np.float32)
            cosines, sines = (
                torch.from_numpy(each.astype(np.float32) * factors).to(self._device) for each in turned
            )
            self._angles[angles] = cosines, sines
        return self._angles[angles]

    def _attend(
        self,
        step: DeviceStep,
        rows: int,
        out: Any,
        queries: Any,
        x: Any,
        *,
        query: Product | SplitHeads,
        key: Product | SplitHeads | None,
        heads: int,
        kv_heads: int,
        head_dim: int,
        group: int,
        layer: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> None:
        pages, reach = step.pages[group], step.slots if step.reach is None else step.reach
        cosines, sines = (x, x) if query.angles is None else self._angles_of(query.angles)
        for tiles in step.tiles:
            grid = (len(tiles.rows), kv_heads)
            settings = {
                "UNIT": UNIT,
                "QUERIES": tiles.queries,
                "HEAD": head_block(head_dim),
                "SHARING": heads // kv_heads,
                "WINDOWED": window > 0,
                "SINKING": sinks is not None,
            }
            cut = (step.slots, reach, tiles.rows, tiles.counts, queries.stride(0), head_dim, window)
            self._launch(
                attention.attend_kernel,
                (*grid, tiles.units) if tiles.units else grid,
                queries,
                out,
                self._partial,
                self._arrived,
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
                x,
                cosines,
                sines,
                x.stride(0),
                0 if query.angles is None else cosines.shape[1],
                x if sinks is None else sinks,
                KEEPING=_attention_keeps(step, query, key),
                ROTATED=query.angles is not None,
                PAGE=PAGE,
                BLOCK=BLOCK,
                CAPPED=softcap > 0,
                SPLIT=tiles.units > 0,
                REACHING=step.reach is not None,
                **ATTENTION,
                **settings,
            )
            if tiles.units and step.reach is not None:
                merge = attention.merge_kernel
                sink = x if sinks is None else sinks
                self._launch(
                    merge, grid, queries, out, self._partial, *cut, tiles.units, sink, num_warps=4, **settings
                )

    def _elementwise(
        self,
        step: DeviceStep,
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
            (rows, cdiv(width, _COLUMNS)),
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


def _attention_keeps(step: DeviceStep, query: Product | SplitHeads, key: Product | SplitHeads | None) -> bool:
    """Returns whether the kernel of attention rotates queries and keys and writes keys and values itself."""
    if key is None:
        return False
    plain = query.norm is None and key.norm is None and query.angles is key.angles
    return step.one_each and step.reach is None and plain


def head_block(head_dim: int) -> int:
    """Returns the columns of a head in attention: a power of two, as large as the tensor cores need."""
    return int(max(16, next_power_of_2(head_dim)))
