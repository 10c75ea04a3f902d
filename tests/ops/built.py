"""What the tests compile. It is kept in build/tests for each state of its sources, so that the workers of a
test run share it and the next run finds it.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

FOLDER = Path(__file__).parents[2] / "build" / "tests"


def built(compiler: str, flags: Sequence[str], sources: Sequence[Path], include: Sequence[Path] = ()) -> Path:
    """Compiles sources, with the headers that are in their folders and in those of `include`, and returns the
    file."""
    folders = sorted({source.parent for source in sources} | {*include})
    headers = sorted(file for folder in folders for file in folder.glob("*.h"))
    digest = hashlib.sha256(repr((compiler, flags)).encode())
    for file in (*sources, *headers):
        digest.update(file.name.encode() + file.read_bytes())
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = FOLDER / digest.hexdigest()[:16]
    with FileLock(f"{made}.lock"):  # another worker may be at it
        if not made.exists():
            part = made.with_suffix(".part")
            files = [*(f"-I{folder}" for folder in include), *map(str, sources)]
            subprocess.run([compiler, *files, *flags, "-o", str(part), "-lm"], check=True)
            part.replace(made)
    return made
