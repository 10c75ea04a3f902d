"""The torch op set: the forward pass on a GPU, by Triton kernels whose sums have one written order.

Importing this package imports neither torch nor Triton; `available` looks whether they can be used.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Returns whether torch, Triton and a CUDA device (or Triton's interpreter) are here."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    import torch

    return torch.cuda.is_available()
