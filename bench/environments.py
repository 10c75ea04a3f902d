"""Virtual environments of the peers, one for each under `.venv-bench`, created when first needed and again
when the requirements change. A peer that cannot be installed is left out of the run, with the reason.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from bench.catalog import ROOT, Peer

FOLDER = ROOT / ".venv-bench"
_COMPILED_FOR = {
    "avx2": "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
}


class Absent(Exception):
    """The reason why an engine is left out, in one line."""


def python_for(peer: Peer) -> Path:
    """Returns the Python interpreter of the engine's environment, which is created if necessary."""
    if peer.environment is None:
        return Path(sys.executable)
    requirements = ROOT / "bench" / f"requirements-{peer.environment}.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    # An engine that is compiled for the machine is compiled again for a limited instruction set.
    flags = _COMPILED_FOR.get(os.environ.get("GLASSLOOP_ISA", "")) if peer.compiled else None
    folder = FOLDER / (peer.environment + (f"-{os.environ['GLASSLOOP_ISA']}" if flags else ""))
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    wait = ", which compiles for some ten minutes" if peer.name == "llama.cpp" else ""
    print(f"bench: installing {peer.name}{wait} ...", file=sys.stderr)
    with log_file(peer).open("w") as log:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
            + (["--no-cache-dir"] if flags else []),
        ):
            settings = os.environ | ({"CMAKE_ARGS": flags} if flags else {})
            if subprocess.run(command, stdout=log, stderr=log, env=settings, check=False).returncode:
                raise Absent(f"could not be installed; {last_line(peer)}")
    stamp.write_text(wanted)
    return python


def log_file(peer: Peer) -> Path:
    """Returns the file for the output of the engine and of its installation."""
    FOLDER.mkdir(exist_ok=True)
    return FOLDER / f"{peer.name}.log"


def last_line(peer: Peer) -> str:
    lines = log_file(peer).read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:160] if lines else "it said nothing"
