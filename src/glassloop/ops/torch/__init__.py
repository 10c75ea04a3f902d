"""The torch op set: the forward pass on a GPU, by Triton kernels in which every sum has a fixed order.

Importing this package imports neither torch nor Triton.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# NVIDIA's driver makes the first one, the driver for Linux within Windows the second one.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def installed() -> bool:
    """Returns whether the extra `gpu` is installed."""
    return find_spec("torch") is not None and find_spec("triton") is not None


def interpreted() -> bool:
    """Returns whether Triton is told to interpret kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def has_device() -> bool:
    """Returns whether there is a GPU that computes in bfloat16. torch, whose import takes seconds, is only
    imported if there is a driver."""
    if not any(driver.exists() for driver in _DRIVERS) or not installed():
        return False
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0))
