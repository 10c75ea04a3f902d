"""Compiles the torch op set's kernels without a GPU: `compiled` returns a kernel for an architecture, and
`variants` what a program launches. Types follow from the names of arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from subprocess import run
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glassloop.ops.torch import chooser as device_chooser
from glassloop.ops.torch import packed_linear
from glassloop.ops.torch.kernels import adapter, attention, linear, packed, pointwise
from glassloop.ops.torch.launcher import ATTENTION, BLOCK, KEPT_HEADS
from glassloop.ops.torch.row_tiles import ADAPTER_ROWS, FEW, MANY, UNIT
from glassloop.ops.torch.tiles import H200, TileTable

SHARED_MEMORY = {
    80: 166_912,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}  # bytes that one program may have, by architecture
_INTEGERS = {
    "rows", "width", "columns", "x_stride", "y_stride", "residual_stride", "out_stride", "query_stride",
    "page_stride", "layer_offset", "group", "head_dim", "half", "window", "units", "heads", "kv_heads",
    "stride", "parts", "found_bytes", "first", "summing", "listing", "pieces", "blocks",
}  # fmt: skip
_FLOATS = {"eps", "scale", "softcap", "factor"}
_INTEGER_ARRAYS = {
    "ids",
    "positions",
    "slots",
    "reaches",
    "row_table",
    "row_stride",
    "tables",
    "tile_row",
    "tile_count",
    "places",
    "arrived",
    "order",
    "ints",
    "tokens",
    "predicted",
    "words",
    "counts",
    "bounds",
    "race_ids",
    "firsts",
    "full",
    "untils",
    "totals",
}
_FLOAT_ARRAYS = {
    "bias",
    "residual",
    "partial",
    "cosines",
    "sines",
    "key_weight",
    "key_bias",
    "logits",
    "edited",
    "maxima",
    "scores",
    "race_scores",
    "scales",
    "floats",
}
_WIDE_ARRAYS = {
    "lines": "*i64",
    "doubles": "*fp64",
    "keys": "*i64",
    "sorted_keys": "*i64",
    "masses": "*fp64",
    "tails": "*fp64",
}
# Arguments that differ between the kernels.
_OWN = {
    "take_kernel": {"x": "*fp32", "rows": "*i32", "out": "*fp32"},
    "embed_kernel": {"out": "*fp32"},
    "embed_packed_kernel": {"out": "*fp32"},
    "norm_kernel": {"x": "*fp32", "weight": "*fp32"},
    "heads_kernel": {"x": "*fp32", "weight": "*fp32"},
    "keep_kernel": {"x": "*fp32", "weight": "*fp32"},
    "attend_kernel": {"x": "*fp32"},
    "elementwise_kernel": {"x": "*fp32", "y": "*fp32"},
}

TILES = TileTable(H200)


def compiled(kernel: Any, architecture: int, constants: dict[str, Any], **options: Any) -> Any:
    """Compiles a kernel as for arrays that are aligned and sizes that are multiples of 16."""
    named = ("x", "weight", "words", "scales", "table", "out")
    own = {name: options.pop(name) for name in named if name in options}
    types: dict[str, str] = _OWN.get(kernel.__name__, {}) | own
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in types:
            signature[name] = types[name]
        elif name in _WIDE_ARRAYS:
            signature[name] = _WIDE_ARRAYS[name]
        elif name in _FLOATS:
            signature[name] = "fp32"
        elif name in _INTEGERS:
            signature[name] = "i32"
        else:
            signature[name] = (
                "*i32" if name in _INTEGER_ARRAYS else "*fp32" if name in _FLOAT_ARRAYS else "*bf16"
            )
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(signature.values())
        if kind == "i32" or kind.startswith("*")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options={"enable_fp_fusion": False, **options})


def stack_bytes(code: bytes) -> int:
    """Returns how many bytes a thread of the kernel in a file of code needs for registers that are spilled
    and arrays that are not in registers."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        told = run([program, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"STACK:(\d+)", told.stdout)
    assert found is not None, told.stdout
    return int(found[1])


def variants(
    architecture: int, rows: tuple[int, ...]
) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Yields kernels with the constants and options that programs launch them with; products and attention of
    these numbers of rows."""
    early = SHARED_MEMORY[architecture] > 200_000
    yield pointwise.embed_kernel, {"BLOCK": 1024}, {}
    for bits, group, has_middle, kind in (
        *((4, 32, True, ""), (8, 32, False, ""), (8, 16, True, "")),
        *((4, 32, False, "TABLE"), (8, 128, False, "FLOAT")),
    ):
        about = {"BITS": bits, "GROUP": group, "MIDDLE": has_middle}
        about |= {name: name == kind for name in ("TABLE", "FLOAT")}
        types = {"words": "*i32", "scales": "*i16", "table": "*i32"}
        yield packed.embed_packed_kernel, {"BLOCK": 1024} | about, types
        yield packed.expand_kernel, {"ROWS": 8, "STEP": 512, "MATRICES": 2} | about, types
    yield pointwise.take_kernel, {"BLOCK": 1024, "EARLY": early}, {}
    for centred in (False, True):
        yield pointwise.norm_kernel, {"BLOCK": 4096, "CENTRED": centred, "EARLY": early}, {"num_warps": 8}
    heads = {"BLOCK": 128, "NORM": 2, "ROTATED": True}
    yield pointwise.heads_kernel, heads, {"num_warps": 1}
    for reaching in (False, True):
        settings = heads | {"PAGE": 32, "HEADS": KEPT_HEADS, "EARLY": early, "REACHING": reaching}
        yield pointwise.keep_kernel, settings, {"num_warps": KEPT_HEADS}
    adapted = {"ROWS": ADAPTER_ROWS, "EARLY": early}
    down, up = {"WIDTH": 16, "STEP": 128, "UP": False}, {"WIDTH": 64, "STEP": 16, "UP": True}
    yield adapter.low_rank_kernel, adapted | down, {"num_warps": 1}
    yield adapter.low_rank_kernel, adapted | up, {"num_warps": 4, "out": "*fp32"}
    for kind in range(len(pointwise.ELEMENTWISE)):
        settings = {"KIND": kind, "ACTIVATION": kind % 4, "BLOCK": 1024, "SPACING": 1}
        yield pointwise.elementwise_kernel, settings, {}
    for count in rows:
        for width, gated in ((4096, False), (128256, False), (14336, True)):
            yield _linear(architecture, count, width, gated, early and count <= 64)
            yield _sliced(architecture, count, width, gated)
            if early and count > 128:
                yield _wide(architecture, count, width, gated)
    about = {"UNIT": UNIT, "HEAD": 128, "SHARING": 4, "WINDOWED": True}
    for queries, split, reaching in (
        *(
            (FEW, True, False),
            (FEW, False, False),
            (MANY, False, True),
            (FEW, True, True),
            (MANY, False, False),
        ),
    ):
        about |= {"QUERIES": queries}
        settings = about | {"PAGE": 32, "BLOCK": BLOCK, "CAPPED": True, "SPLIT": split, "EARLY": early}
        settings["REACHING"] = reaching
        for keeping in (False, True) if queries == FEW and not reaching else (False,):
            kept = {"KEEPING": keeping, "ROTATED": True}
            yield attention.attend_kernel, settings | kept, dict(ATTENTION)
    yield attention.merge_kernel, about | {"EARLY": early}, {"num_warps": 4}
    yield device_chooser.kernels.fill_kernel, {"BLOCK": 1024}, {}
    choosing = (device_chooser.EDITING, device_chooser.PREDICTING, device_chooser.NOTING)
    for kernel in (*chain(*choosing), device_chooser.order_kernels.slots_kernel, *device_chooser.FOLLOWING):
        for few in ({}, {"SOME": device_chooser.FEW_GROUPS}):
            constants = device_chooser.SETTINGS | {"EARLY": early} | few
            named = {name: value for name, value in constants.items() if name in kernel.arg_names}
            if few and "SOME" not in named:
                continue
            warps = device_chooser.WARPS.get(kernel)
            yield kernel, named, {} if warps is None else {"num_warps": warps}


def _linear(architecture: int, rows: int, width: int, gated: bool, early: bool) -> Any:
    weight_rows = 2 * width if gated else width
    tile = TILES.plain(rows, weight_rows, SHARED_MEMORY[architecture])
    constants = {
        "ROWS": tile.rows, "WIDTH": tile.width, "STEP": tile.step, "SWAPPED": tile.swapped, "EVEN": True,
        "BIASED": False, "ADDED": not gated, "GATED": gated, "ACTIVATION": 2, "EARLY": early,
        "AHEAD": early and rows <= 16, "SLICES": 1,
    }  # fmt: skip
    out = "*bf16" if gated else "*fp32"
    return linear.linear_kernel, constants, {"num_warps": tile.warps, "num_stages": tile.stages, "out": out}


def _sliced(architecture: int, rows: int, width: int, gated: bool) -> Any:
    kernel, constants, options = _linear(architecture, rows, width, gated, False)
    tile = TILES.sliced(rows, 2 * width if gated else width, SHARED_MEMORY[architecture])
    constants |= {"ROWS": tile.rows, "WIDTH": tile.width, "STEP": tile.step, "SWAPPED": tile.swapped}
    options |= {"num_warps": tile.warps, "num_stages": tile.stages}
    return kernel, constants | {"SLICES": packed_linear.SLICES, "AHEAD": False}, options


def _wide(architecture: int, rows: int, width: int, gated: bool) -> Any:
    _, constants, options = _linear(architecture, rows, width, gated, False)
    tile = TILES.wide(rows, 2 * width if gated else width, gated, SHARED_MEMORY[architecture])
    constants |= {"ROWS": tile.rows, "WIDTH": tile.width, "STEP": tile.step, "PIECES": tile.pieces}
    options |= {"num_warps": tile.warps, "num_stages": tile.stages}
    options["x"] = f"tensordesc<bf16[{tile.rows}, {tile.step}]>"
    options["weight"] = f"tensordesc<bf16[{tile.width}, {tile.step}]>"
    wanted = linear.wide_linear_kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in wanted}
    return linear.wide_linear_kernel, constants, options
