"""String arrays of model files, read in C: a vocabulary of 50,000 in milliseconds."""

from __future__ import annotations

import numpy as np

from glassloop.ops.native.library import available, library
from glassloop.ops.quant import Bytes


def read_strings(data: Bytes, count: int) -> tuple[list[str], int]:
    """Returns the first `count` strings of `data`, each stored after its length (eight bytes), and the bytes
    that they take.

    Returns no strings and 0 if the C library was not built or a string is unusual; then the caller reads them
    one by one.
    """
    if not count or not available():
        return [], 0
    size = library().gl_join_strings(data.ctypes.data, len(data), count, None)
    if not size:
        return [], 0
    joined = np.empty(size - 7 * count, np.uint8)  # a zero byte after each instead of a length before it
    library().gl_join_strings(data.ctypes.data, len(data), count, joined.ctypes.data)
    return joined.tobytes().decode("utf-8", "surrogateescape").split("\0")[:-1], size
