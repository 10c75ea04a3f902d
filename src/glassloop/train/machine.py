"""The machine that a run uses: device, threads, deterministic kernels, and the facts that are recorded."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassloop.train.config import TrainConfig, TrainError


def choose_device(config: TrainConfig) -> str:
    """Returns "cuda" or "cpu". Raises if a GPU is asked for and there is none."""
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise TrainError.about("device", "is 'cuda', but torch finds no GPU; cpu or auto is expected")
    return "cuda" if config.device == "cuda" or (config.device == "auto" and has_gpu) else "cpu"


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settled(config: TrainConfig) -> TrainConfig:
    """Returns a config whose device, precision, threads and length of samples are decided. A run keeps them,
    so that resuming it elsewhere does not change them."""
    device, precision = choose_device(config), config.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "f32"
    sample = config.sample_tokens or (40 if device == "cpu" and config.model is not None else 200)
    return replace(
        config, device=device, precision=precision, threads=config.threads or cores(), sample_tokens=sample
    )


def send(array: NDArray[Any], device: str) -> torch.Tensor:
    """Returns an array on a device. It is copied from pinned memory, so that the copy does not wait for what
    the device still computes."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def set_up(config: TrainConfig) -> Iterator[None]:
    """Sets threads and kernels inside the block. The number of threads decides in which order sums run on a
    CPU, so it is part of the config."""
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.get_float32_matmul_precision(),
    )
    if config.deterministic:
        # cuBLAS reads it when it starts; without it, its products may differ from run to run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if config.compile:
            _compile_without_timing()
    _set(config.threads, config.deterministic, False, "highest" if config.deterministic else "high")
    try:
        yield
    finally:
        _set(*before)


def _compile_without_timing() -> None:
    """Keeps the compiler from choosing kernels by their measured time, which may differ from run to run."""
    from torch._inductor import config as inductor

    if hasattr(inductor, "deterministic"):
        inductor.deterministic = True


def _set(threads: int, deterministic: bool, fill: bool, precision: str) -> None:
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # only debugging needs it
    torch.set_float32_matmul_precision(precision)


def environment(device: str) -> dict[str, Any]:
    """Returns the facts on which the bits of a result may depend."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
    }
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    else:
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
