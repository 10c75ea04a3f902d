"""A Hugging Face hub on loopback, with as much of its protocol as the real client needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  # bytes from which a file counts as LFS here, with a SHA-256 in the listing


class FakeHub:
    """`repos` maps owner/repo to its files; `lies` maps a file to the bytes that are sent in its stead."""

    def __init__(self, repos: dict[str, dict[str, bytes]]) -> None:
        self.repos = repos
        self.lies: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.stop_at: str | None = None  # a file in whose middle everything stops
        self.held, self.go_on = threading.Event(), threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.respond(head=True)

            def do_GET(self) -> None:
                self.respond(head=False)

            def respond(self, head: bool) -> None:
                parts = unquote(urlsplit(self.path).path).strip("/").split("/")
                if parts[:2] == ["api", "models"]:
                    self.listing("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
                elif len(parts) > 4 and parts[2] == "resolve":
                    self.file("/".join(parts[:2]), "/".join(parts[4:]), head)
                else:
                    self.refuse("EntryNotFound")

            def listing(self, repo: str, revision: str) -> None:
                if repo not in hub.repos:
                    self.refuse(
                        "GatedRepo" if "gated" in repo else "RepoNotFound", 403 if "gated" in repo else 401
                    )
                elif revision not in ("main", "v1", COMMIT):
                    self.refuse("RevisionNotFound")
                else:
                    siblings = [sibling(name, content) for name, content in hub.repos[repo].items()]
                    facts = {"id": repo, "sha": COMMIT, "siblings": siblings, "cardData": {"license": "mit"}}
                    self.content(json.dumps(facts).encode(), {"Content-Type": "application/json"})

            def file(self, repo: str, name: str, head: bool) -> None:
                content = hub.repos.get(repo, {}).get(name)
                if content is None:
                    self.refuse("EntryNotFound")
                    return
                headers = {"ETag": f'"{etag(content)}"', "X-Repo-Commit": COMMIT}
                if head:
                    self.content(content, headers, head=True)
                else:
                    hub.sent.append(name)
                    self.content(hub.lies.get(name, content), headers, pause=name == hub.stop_at)

            def content(
                self, content: bytes, headers: dict[str, str], head: bool = False, pause: bool = False
            ) -> None:
                self.send_response(200)
                for key, value in (headers | {"Content-Length": str(len(content))}).items():
                    self.send_header(key, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    if pause:
                        self.wfile.write(content[: len(content) // 2])
                        hub.held.set()
                        hub.go_on.wait(120)
                        content = content[len(content) // 2 :]
                    self.wfile.write(b"" if head else content)

            def refuse(self, code: str, status: int = 404) -> None:
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeHub]:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            self.go_on.set()
            self.server.shutdown()
            self.server.server_close()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if len(content) >= LARGE else blob_id(content)


def sibling(name: str, content: bytes) -> dict[str, object]:
    facts: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
    if len(content) >= LARGE:
        facts["lfs"] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 130,
        }
    return facts
