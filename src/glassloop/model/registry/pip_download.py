"""Downloads a wheel through pip, with the user's own settings of pip (indexes, proxies, certificates).

pip runs as a child process that ends with this one, prints nothing on the terminal, and keeps its temporary
files in the folder it is given. Its errors become one line.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import Wheel

# pip with a thread that reads its stdin, which this process holds open: when this process ends, however it
# ends, the thread reads the end of the pipe and exits.
_PIP_THAT_ENDS_WITH_US = """\
import os, runpy, sys, threading
def watch():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def download(wheel: Wheel, folder: Path) -> Path:
    """Downloads a wheel below `folder` and returns its path. The wheel is not verified yet."""
    temporary, log = folder / "tmp", folder / "pip.log"
    temporary.mkdir()
    command = [
        *_pip(),
        *(
            "download",
            f"{wheel.project}=={wheel.version}",
            "--no-deps",
            "--no-cache-dir",
            "--only-binary=:all:",
        ),
        *("--dest", str(folder), "--disable-pip-version-check", "--no-input", "--progress-bar=off", "-vv"),
    ]
    with log.open("wb") as out, _running(command, _environment(temporary), out.fileno()) as pip:
        try:
            status = pip.wait()
        except BaseException:
            _end(pip)
            raise
    wheels = list(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise RegistryError(f"cannot download {wheel} from PyPI: {reason(text, wheel, status)}")
    return wheels[0]


def _pip() -> list[str]:
    # -P: a pip.py in the current folder must not be run.
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-c", _PIP_THAT_ENDS_WITH_US]
    for name in ("pip", "pip3"):
        if path := shutil.which(name):
            return [path]
    raise RegistryError(
        f"pulling from PyPI needs pip, and neither this Python ({sys.executable}) nor PATH has it; "
        "'python -m ensurepip' installs it"
    )


def _environment(temporary: Path) -> dict[str, str]:
    here = str(temporary)
    return {
        **os.environ,
        "TMPDIR": here,
        "TEMP": here,
        "TMP": here,
        "PIP_REQUIRE_VIRTUALENV": "0",  # nothing is installed
        "PIP_NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
    }


def _running(command: list[str], environment: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        raise RegistryError(
            f"pulling from PyPI needs pip, and {command[0]} cannot be run: {error}"
        ) from error


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=2)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


_UNREACHABLE = re.compile(
    r"(Connection refused|Name or service not known|Temporary failure in name resolution|No route to host|"
    r"Network is unreachable|nodename nor servname|getaddrinfo failed|timed out|Connection reset by peer|"
    r"Connection aborted|Cannot connect to proxy|certificate verify failed|Remote end closed connection|"
    r"not a trusted or secure host|Failed to resolve|[Pp]roxy ?[Ee]rror|Tunnel connection failed)"
)
_NOT_FOUND = re.compile(r"No matching distribution found|Could not find a version")
_VERSIONS = re.compile(r"\(from versions: (?P<versions>.*)\)")


def reason(log: str, wheel: Wheel, status: int) -> str:
    """Returns the most useful part of pip's output, as the end of a sentence."""
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return "the disk is full; free some space or set GLASSLOOP_HOME to a folder elsewhere"
    versions = _VERSIONS.search(log)
    if _NOT_FOUND.search(log) and versions and versions["versions"] != "none":
        return f"there is no version {wheel.version} (there are {_shortened(versions['versions'])})"
    if unreachable := _UNREACHABLE.search(log):
        return (
            f"the package index does not answer ({unreachable[0]}); check the network and pip's settings "
            "('pip config list')"
        )
    if _NOT_FOUND.search(log):
        return "the package index does not have it; check pip's settings ('pip config list')"
    complaints = [line for line in log.splitlines() if line.startswith("ERROR:")] or log.split("\n")
    last = next((line.removeprefix("ERROR:").strip() for line in reversed(complaints) if line.strip()), "")
    return f"pip ended with status {status}: {_shortened(last) or 'it printed nothing'}"


def _shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
