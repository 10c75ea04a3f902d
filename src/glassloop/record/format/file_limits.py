"""How much a `.glass` file may hold. Checked before anything is uncompressed, parsed or allocated, and by the
writer too, so that what is written can be read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileLimits:
    """The largest sizes of a file and its runs. Bytes are counted uncompressed."""

    header: int = 8 << 20  # of one run
    columns: int = 64 << 20  # of one run
    total: int = 256 << 20  # of all runs of a file together; the file itself may not be longer either
    tokens: int = 1 << 21  # of one run: its prompt and its records


MOST_RUNS = 4096  # in one file
MOST_CONTAINERS = 1 << 20  # brackets in a header: an empty JSON list takes 3 bytes, and 64 once it is parsed
DEEPEST = 220  # levels of lists and objects in a header; a JSON schema within it may have 200
