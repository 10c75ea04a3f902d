"""Launches the product of a few rows with a packed matrix, `kernels/few_rows.cu`, which is compiled on first
use. (Matrices in half precision do not need it: Triton's kernel is as fast for them.)"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from glassloop.errors import GlassloopError
from glassloop.ops.torch.matrix import Packed

MOST_ROWS = 16
SOURCE = Path(__file__).parent / "kernels" / "few_rows.cu"
_THREADS = 512
_SHARED = 224 << 10  # bytes of shared memory that a block may have
_EXCLUSIVE = 116 << 10  # that it has at least: two blocks on one multiprocessor would leave another one idle
_RING = 64 << 10  # of these for the matrix
_ROW_BYTES = 128  # of a row of the matrix in a stage
_MOST_STAGES = 32
_GELU = 0  # the activation that the kernel does not have


class FewRows(NamedTuple):
    """A product of a few rows with a packed matrix: x @ weight.T + bias + added or, if gated,
    activated(x @ gate.T) * (x @ up.T) for a weight that has the rows of gate and of up in turn."""

    rows: int  # of x, out and added, which may have more
    out: torch.Tensor
    x: torch.Tensor
    added: torch.Tensor | None
    weight: Packed
    bias: torch.Tensor | None = None
    gated: bool = False
    activation: int = 0  # an index of `ACTIVATIONS`

    def can_launch(self) -> bool:
        """Returns whether the kernel computes this product, and computes it faster than `linear_kernel`."""
        if self.rows > MOST_ROWS or _nvrtc() is None:
            return False
        columns = self.weight.shape[1]
        whole_steps = columns % (_ROW_BYTES * 8 // self.weight.bits) == 0 and self.x.stride(0) % 8 == 0
        wide = self.added is None or self.added.dtype is torch.float32
        has_activation = not (self.gated and self.activation == _GELU)
        return whole_steps and wide and bool(_cell(self.rows, columns)) and has_activation

    def launch(self, processors: int, early: bool) -> None:
        """Computes the product on the current stream, with the bits of `linear_kernel`. `processors` is the
        number of multiprocessors; `early` is whether the kernel starts before the previous one has ended."""
        out, x, weight = self.out, self.x, self.weight
        settings = self.settings(processors, early)
        kernel = _compiled(tuple(settings.items()), torch.cuda.current_device())
        # An argument that the kernel does not read is any array.
        minimums = weight.scale if weight.minimum is None else weight.minimum
        bias, residual = (out if each is None else each for each in (self.bias, self.added))
        arrays = (x, weight.codes, weight.scale, minimums, bias, residual, out)
        sizes = (self.rows, out.shape[1], weight.shape[1], x.stride(0), residual.stride(0), out.stride(0))
        arguments = [ctypes.c_void_p(each.data_ptr()) for each in arrays] + [*map(ctypes.c_int, sizes)]
        blocks = min(-(-out.shape[1] // 8), processors)
        _driver_launch(kernel, blocks, shared_bytes(settings, weight.shape[1]), arguments, early)

    def settings(self, processors: int, early: bool) -> dict[str, int]:
        """Returns the constants that the kernel is compiled with."""
        weight, out = self.weight, self.out
        settings = {
            "BITS": weight.bits,
            "MINIMUM": int(weight.minimum is not None),
            "WIDE_SCALES": int(weight.scale.dtype is torch.float32),
            "ZERO": weight.zero,
            "GROUP": weight.group,
            "GATED": int(self.gated),
            "ACTIVATION": self.activation,
            "BIASED": int(self.bias is not None),
            "ADDED": int(self.added is not None),
            "HALF_OUT": int(out.dtype is torch.bfloat16),
            "MANY": int(self.rows > 8),
            "X_ROWS": _x_rows(self.rows),
            "CELL": _cell(self.rows, weight.shape[1]),
            "EARLY": int(early),
        }
        return settings | _division(out.shape[1], settings, processors)


def _x_rows(rows: int) -> int:
    """Returns the rows of cells that x has in shared memory. If there are more than 8, a cell has the columns
    of two rows."""
    return 1 << (min(rows, 8) - 1).bit_length()


def _cell(rows: int, columns: int) -> int:
    """Returns the bytes that the kernel keeps for 4 columns of a row of x: 16, as its instructions need them,
    or 8 if that is too much; 0 if x does not fit."""
    cells = _x_rows(rows) * columns // 4
    sizes = (16,) if rows > 8 else (16, 8)
    return next((size for size in sizes if cells * size <= _SHARED - _RING), 0)


def shared_bytes(settings: dict[str, int], columns: int) -> int:
    """Returns the bytes of shared memory of a block: the stages, and x behind them."""
    x_bytes = settings["X_ROWS"] * columns // 4 * settings["CELL"]
    return max(_EXCLUSIVE, x_bytes + settings["WARPS"] * settings["STAGES"] * _stage_bytes(settings))


def _stage_bytes(settings: dict[str, int]) -> int:
    """Returns the bytes of a stage, as the kernel computes them."""
    scales = _ROW_BYTES * 8 // settings["BITS"] // settings["GROUP"]
    scale_bytes = scales * (4 if settings["WIDE_SCALES"] else 2) * (1 + settings["MINIMUM"])
    return 8 * (_ROW_BYTES + scale_bytes) * (2 if settings["GATED"] else 1)


def _division(width: int, settings: dict[str, int], processors: int) -> dict[str, int]:
    """Returns how a product is divided: as many warps of a multiprocessor as have two stages each."""
    tiles, stage_bytes = -(-width // (8 * processors)), _stage_bytes(settings)  # of a multiprocessor
    warps = stages = 0
    for turns in range(-(-tiles // (_THREADS // 32)), tiles + 1):
        warps = -(-tiles // turns)
        stages = min(_MOST_STAGES, _RING // (warps * stage_bytes))
        if stages >= 2:
            break
    return {"WARPS": warps, "STAGES": stages}


# ── the compiler and the driver ────────────────────────────────────────────────────────────────────────────


def translate(settings: dict[str, int], architecture: str) -> bytes:
    """Returns the kernel as code for an architecture, such as sm_90."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    assert nvrtc is not None
    source = SOURCE.read_bytes()
    _check_nvrtc(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"few_rows.cu", 0, None, None))
    try:
        defined = [f"-D{name}={value}" for name, value in settings.items()]
        options = [each.encode() for each in (f"--gpu-architecture={architecture}", "--std=c++17", *defined)]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        if failed:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise GlassloopError(f"few_rows.cu does not compile for {architecture}: {log.value.decode()}")
        _check_nvrtc(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check_nvrtc(nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _compiled(settings: tuple[tuple[str, int], ...], device: int) -> ctypes.c_void_p:
    """Returns the kernel with these settings, loaded on a device."""
    code = translate(dict(settings), "sm_{}{}".format(*torch.cuda.get_device_capability(device)))
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), code))
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"few_rows"))
    most_shared = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver.cuFuncSetAttribute(function, most_shared, _SHARED + (2 << 10)))
    return function


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


def _driver_launch(
    kernel: ctypes.c_void_p, blocks: int, shared: int, arguments: list[Any], early: bool
) -> None:
    attribute = _Attribute(id=6)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value[0] = 1
    config = _Config(
        grid=(blocks, 1, 1),
        block=(_THREADS, 1, 1),
        shared=shared,
        stream=torch.cuda.current_stream().cuda_stream,
        attributes=ctypes.pointer(attribute),
        count=int(early),
    )
    places = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
    _check(_driver().cuLaunchKernelEx(ctypes.byref(config), kernel, places, None))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise GlassloopError(
            f"the CUDA driver refused the kernel for few rows: {(text.value or b'?').decode()} ({result})"
        )


def _check_nvrtc(result: int) -> None:
    if result:
        raise GlassloopError(f"NVRTC failed with the error {result}")


@cache
def _nvrtc() -> ctypes.CDLL | None:
    """Returns NVIDIA's compiler, which comes with torch for CUDA, or None if it is not there."""
    for name in _nvrtc_names():
        try:
            for part in Path(name).parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))  # where the compiler finds it
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _nvrtc_names() -> Iterator[str]:
    major = (torch.version.cuda or "13").partition(".")[0]
    yield f"libnvrtc.so.{major}"
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        yield from sorted(map(str, Path(folder).glob(f"*/lib/libnvrtc.so.{major}*")))
