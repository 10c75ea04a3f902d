"""Compiles kernels written in CUDA C++ by NVIDIA's compiler, NVRTC, which comes with torch for CUDA, and
launches them by the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from glassloop.errors import GlassloopError

Settings = tuple[tuple[str, int], ...]  # what a kernel is compiled with


def is_available() -> bool:
    """Returns whether the compiler is there."""
    return _nvrtc() is not None


def translate(source: Path, settings: Settings, architecture: str) -> bytes:
    """Returns the kernel in a file as code for an architecture, such as sm_90."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    assert nvrtc is not None
    name, text = source.name, source.read_bytes()
    _check_nvrtc(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None))
    try:
        # Functions, and generic lambdas with older compilers, are for the device without a word about it.
        flags = [f"--gpu-architecture={architecture}", "--std=c++17", "--device-as-default-execution-space"]
        flags += [f"-D{each}={value}" for each, value in settings]
        options = [each.encode() for each in flags]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        if failed:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise GlassloopError(f"{name} does not compile for {architecture}: {log.value.decode()}")
        _check_nvrtc(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check_nvrtc(nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def launch(
    source: Path,
    settings: Settings,
    grid: tuple[int, int],
    threads: int,
    shared: int,
    arguments: Sequence[Any],
    early: bool,
) -> None:
    """Launches the kernel in a file, which has its name, on the current stream: a grid of blocks of so many
    threads with so many bytes of shared memory. `arguments` are values of `ctypes`; `early` is whether it may
    start before the previous kernel has ended."""
    kernel = _compiled(source, settings, shared, torch.cuda.current_device())
    attribute = _Attribute(id=6)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value[0] = 1
    config = _Config(
        grid=(*grid, 1),
        block=(threads, 1, 1),
        shared=shared,
        stream=torch.cuda.current_stream().cuda_stream,
        attributes=ctypes.pointer(attribute),
        count=int(early),
    )
    places = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
    _check(_driver().cuLaunchKernelEx(ctypes.byref(config), kernel, places, None))


@cache
def _compiled(source: Path, settings: Settings, shared: int, device: int) -> ctypes.c_void_p:
    """Returns the kernel with these settings, loaded on a device."""
    code = translate(source, settings, "sm_{}{}".format(*torch.cuda.get_device_capability(device)))
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), code))
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, source.stem.encode()))
    most_shared = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver.cuFuncSetAttribute(function, most_shared, shared))
    carveout = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: all of it, for two blocks
    _check(driver.cuFuncSetAttribute(function, carveout, 100))
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


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise GlassloopError(f"the CUDA driver refused a kernel: {(text.value or b'?').decode()} ({result})")


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
