"""Wheels made on the spot, a folder or slow index that serves them to a real pip, a process that pulls."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from glassloop.model.registry.catalog import CATALOG, CatalogEntry, Member, StoredFile, Wheel

# The process that pulls, as `glassloop models pull` does, with one entry more in the catalog.
DRIVER = """
import sys
from glassloop.errors import GlassloopError
from glassloop.model import registry
from glassloop.model.registry import catalog
entry = eval(sys.argv[1], vars(catalog)) if sys.argv[1] else None
if entry: catalog.CATALOG[entry.name] = entry
try:
    print(registry.pull(sys.argv[2]))
except GlassloopError as error:
    sys.exit(f"glassloop: {error}")
"""


def point_pip(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def make_wheel(folder: Path, project: str, members: dict[str, bytes]) -> Wheel:
    plain = project.replace("-", "_")
    path = folder / f"{plain}-1.0-py3-none-any.whl"
    info = f"{plain}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(project, "1.0", path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def stored_file(name: str, members: list[tuple[Wheel, str, bytes]]) -> StoredFile:
    content = b"".join(part for _, _, part in members)
    digest = hashlib.sha256(content).hexdigest()
    return StoredFile(name, tuple(Member(wheel, path) for wheel, path, _ in members), len(content), digest)


def make_entry(
    folder: Path, name: str = "toy", parts: int = 1, size: int = 100_000, notice: str = ""
) -> CatalogEntry:
    """An entry whose file lies in so many wheels, with a licence beside it in the first."""
    chunks = [os.urandom(size) for _ in range(parts)]
    terms = b"terms\n"
    wheels = [
        make_wheel(
            folder, f"{name}-part{n}", {f"data/{n}": chunk} | ({"data/TERMS": terms} if n == 0 else {})
        )
        for n, chunk in enumerate(chunks)
    ]
    members = [
        (wheel, f"data/{n}", chunk) for n, (wheel, chunk) in enumerate(zip(wheels, chunks, strict=True))
    ]
    beside = stored_file("TERMS", [(wheels[0], "data/TERMS", terms)])
    return CatalogEntry(name, "model", stored_file(f"{name}.gguf", members), "MIT", notice, (beside,))


def known(monkeypatch: pytest.MonkeyPatch, entry: CatalogEntry) -> CatalogEntry:
    monkeypatch.setitem(CATALOG, entry.name, entry)
    return entry


def files_below(folder: Path) -> set[str]:
    """What is there, but for the locks, which stay."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)) for path in files}


def put(cache: Path, name: str, missing: int = 0) -> Path:
    """A file of the right size, less so many bytes, where the pull of a known name would put it."""
    file = CATALOG[name].file
    path = cache / "models" / name / file.name
    path.parent.mkdir(parents=True)
    with path.open("wb") as out:
        out.truncate(file.size - missing)
    return path


def start(
    entry: CatalogEntry | None, name: str, *, stderr: int = subprocess.PIPE, before: str = ""
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + DRIVER, repr(entry) if entry else "", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def children_of(pid: int) -> list[int]:
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in out.split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class SlowIndex:
    """A package index on loopback that stops in the middle of one wheel until it is told to go on."""

    def __init__(self, folder: Path, hold: str) -> None:
        self.folder, self.hold = folder, hold
        self.go_on, self.held = threading.Event(), threading.Event()
        self.sent: Counter[str] = Counter()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rstrip("/").rpartition("/")[2]
                if name.endswith(".whl"):
                    self.send_wheel(name)
                    return
                plain = name.replace("-", "_")
                links = [
                    f'<a href="/files/{path.name}">{path.name}</a>'
                    for path in index.folder.glob(f"{plain}-*")
                ]
                self.answer(200 if links else 404, "".join(links).encode())

            def send_wheel(self, name: str) -> None:
                content = (index.folder / name).read_bytes()
                index.sent[name.partition("-")[0].replace("_", "-")] += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                half = len(content) // 2
                with contextlib.suppress(OSError):  # the one that asked may be gone
                    self.wfile.write(content[:half])
                    if index.hold and index.hold in name:
                        index.held.set()
                        index.go_on.wait(120)
                    self.wfile.write(content[half:])

            def answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple"

    @contextlib.contextmanager
    def running(self) -> Iterator[SlowIndex]:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            self.go_on.set()
            self.server.shutdown()
            self.server.server_close()


@contextlib.contextmanager
def slow_index(monkeypatch: pytest.MonkeyPatch, folder: Path, hold: str) -> Iterator[SlowIndex]:
    with SlowIndex(folder, hold).running() as index:
        point_pip(monkeypatch, PIP_INDEX_URL=index.url)
        yield index
