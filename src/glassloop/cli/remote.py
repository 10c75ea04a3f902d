"""`--server URL`: the runs of a server, perhaps on another machine, for the commands that read runs, explain
and fork them.

A run is fetched as a `.glass` file. Where the model is needed, the server's own is asked. All that comes back
is checked and bounded, and each error is one line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from glassloop.cli.flags import Flags, flag
from glassloop.errors import GlassloopError, TextError
from glassloop.util.shown import printable, shown

if TYPE_CHECKING:
    import httpx2

    from glassloop.decode.explain import Explanation
    from glassloop.record.run import Run

KEY_VARIABLE = "GLASSLOOP_API_KEY"
_PANEL = "Another server"
_MOST_JSON = 64 << 20  # bytes of an answer
_MOST_FILE = 256 << 20  # bytes of a .glass file, as for any other
_SECONDS = 300.0  # without a byte: a server may compute for a while
_CONNECT_SECONDS = 10.0
_POLL = 0.3  # seconds between two looks at a run that is computed
_SHOWN = 10  # candidates of an explanation, unless more are asked for
_MOST_LISTED = 1000  # runs of one page of a server's list


@dataclass(frozen=True)
class ServerFlags(Flags, group=_PANEL):
    """The server whose runs are used in place of those in the store."""

    server: str | None = flag(
        None,
        "Use the runs, and the model, of the Glassloop server at this URL in place of the store here.",
        metavar="URL",
    )
    api_key: str | None = flag(
        None,
        f"The API key for --server. Better in {KEY_VARIABLE} or a file: others can see command lines.",
        metavar="KEY",
    )
    api_key_file: Path | None = flag(None, "A file whose first line is the API key for --server.")

    def connect(self, **only_here: object) -> RemoteServer | None:
        """Returns the server that `--server` names, or None without it. `only_here` are options of the
        command that a server cannot use: it is an error if one of them is given."""
        if self.server is None:
            if self.api_key is not None or self.api_key_file is not None:
                name = "--api-key" if self.api_key is not None else "--api-key-file"
                raise GlassloopError(f"{name} is given without --server URL, which it is for")
            return None
        for name, value in only_here.items():
            if value not in (None, False):
                raise GlassloopError(
                    f"--{name.replace('_', '-')} is given with --server, which cannot use it"
                )
        return RemoteServer(self.server, _key(self.api_key, self.api_key_file))


def _key(key: str | None, key_file: Path | None) -> str | None:
    """Returns the key from the command line, from a file or from the environment; one of them, at most."""
    if key is not None and key_file is not None:
        raise GlassloopError("--api-key and --api-key-file are both given; one of them is expected")
    if key_file is not None:
        try:
            with key_file.open(encoding="utf-8") as file:
                key = file.readline(4097).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise GlassloopError(f"--api-key-file is {shown(str(key_file))}: {reason}") from None
    if key is None:  # of several keys, which a server may have, the first
        key = os.environ.get(KEY_VARIABLE, "").split(",")[0].strip() or None
    if key is not None and not (key.isascii() and key.isprintable() and 0 < len(key) <= 4096):
        raise GlassloopError(
            "the API key is empty, too long or not printable ASCII; a key of the server is expected"
        )
    return key


class RemoteServer:
    """A Glassloop server, as a client of its HTTP API sees it."""

    def __init__(self, url: str, key: str | None) -> None:
        import httpx2

        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or parts.username is not None or parts.query or parts.fragment:
            raise GlassloopError(f"--server is {shown(url)}; a URL such as https://host:8000 is expected")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
            follow_redirects=False,  # a redirect would take the key elsewhere
        )

    # ── runs ───────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, name: str) -> Run:
        """Returns a run by its id, the beginning of one, the id of an answer, or "last"."""
        from glassloop.record.format.glass_file import from_bytes

        data = self._get(f"/api/runs/{self._id(name)}/export", _MOST_FILE)
        return from_bytes(data, f"the run of {self.url}", only_first=True)[0]

    def _id(self, name: str) -> str:
        from glassloop.record.run_name import run_id

        if name == "last":
            newest = self.runs(1, "")
            if not newest:
                raise GlassloopError(f"{self.url} has no run yet")
            return self._text(newest[0], "id")
        start = run_id(name)
        if len(start) >= 16 or not start:
            return quote(start or name, safe="")
        ids = [self._text(each, "id") for each in self.runs(_MOST_LISTED, start)]
        ids = [each for each in ids if each.startswith(start)]
        if len(ids) > 1:
            raise GlassloopError(f"several runs begin with {start!r}: {', '.join(ids[:2])} …")
        return quote(ids[0] if ids else start, safe="")

    def runs(self, limit: int, search: str) -> list[dict[str, Any]]:
        """Returns the newest runs as the server lists them, briefly."""
        query = f"limit={min(limit, _MOST_LISTED)}&brief=true&search={quote(search, safe='')}"
        listed = self._get_json(f"/api/runs?{query}").get("runs")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise self._not_ours()
        return listed

    def prompt_pieces(self, run: Run) -> list[str]:
        """Returns the text of each token of a run's prompt."""
        whole = self._get_json(f"/api/runs/{run.id}?alternatives=0")
        try:
            return [self._text(each, "piece") for each in whole["prompt_tokens"]]
        except (KeyError, TypeError):
            raise self._not_ours() from None

    # ── what the server computes ───────────────────────────────────────────────────────────────────────────

    def explain(self, run: Run, at: int, of: str, luck: str, shown: int, **what_if: Any) -> Explanation:
        """Returns why a token was chosen, as the server's engine explains it."""
        from glassloop.decode.explain_read import explanation_of

        number = what_if.pop("number", None)
        query: dict[str, Any] = {"of": of, "luck": luck} | ({} if shown == _SHOWN else {"shown": shown})
        query |= {} if number is None else {"pass": number}
        query |= {name: each if isinstance(each, str) else json.dumps(each) for name, each in what_if.items()}
        pairs = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        return explanation_of(self._get_json(f"/api/runs/{run.id}/explain/{at}?{pairs}"))

    def fork(
        self, run: Run, at: int, tokens: list[str], text: str | None, sampling: Mapping[str, Any]
    ) -> Run:
        """Forks a run on the server and returns the fork when it has ended. `tokens` are the forms of a token
        to continue with, the first that the model has is used."""
        body: dict[str, Any] = {"at": at, "sampling": dict(sampling)}
        if text is not None:
            answer = self._post(f"/api/runs/{run.id}/edit", {**body, "text": text})
        else:
            answer = self._fork(run, [{**body, "token": form} for form in tokens] or [body])
        try:
            id = self._text(answer["runs"][0], "id")
        except (KeyError, IndexError, TypeError):
            raise self._not_ours() from None
        try:
            while self._get_json(f"/api/runs/{id}?alternatives=0&from=1000000").get("status") in (
                "waiting",
                "running",
            ):
                time.sleep(_POLL)
        except KeyboardInterrupt:
            self._post(f"/api/runs/{id}/stop", {})
        return self.run(id)

    def _fork(self, run: Run, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        for body in bodies[:-1]:
            try:
                return self._post(f"/api/runs/{run.id}/fork", body)
            except TextError:  # not a token of this model in this form
                continue
        return self._post(f"/api/runs/{run.id}/fork", bodies[-1])

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def _get_json(self, path: str) -> dict[str, Any]:
        return self._parsed(self._get(path, _MOST_JSON))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._in_words(), self._http.stream("POST", self.url + path, json=body) as answer:
            return self._parsed(self._read(answer, _MOST_JSON))

    def _get(self, path: str, most: int) -> bytes:
        with self._in_words(), self._http.stream("GET", self.url + path) as answer:
            return self._read(answer, most)

    def _read(self, answer: httpx2.Response, most: int) -> bytes:
        """Returns the body of an answer; raises if its status is that of an error, or if it is too long."""
        parts, size = [], 0
        for part in answer.iter_bytes():
            size += len(part)
            if size > most:
                raise GlassloopError(f"{self.url} answered with more than {most} bytes")
            parts.append(part)
        data = b"".join(parts)
        if 200 <= answer.status_code < 300:
            return data
        raise self._refused(answer.status_code, data)

    def _refused(self, status: int, data: bytes) -> GlassloopError:
        """Returns the error that an answer reports."""
        if 300 <= status < 400:
            return GlassloopError(
                f"{self.url} redirects to another address; --server with that one is expected"
            )
        if status == 401:
            where = f"--api-key, --api-key-file or {KEY_VARIABLE}"
            return GlassloopError(f"{self.url} refused the API key, or expects one: {where}")
        try:
            error = json.loads(data)["error"]
            message, param = error["message"], error.get("param")
            assert isinstance(message, str)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError):
            return self._not_ours()
        kind = TextError if param == "token" else GlassloopError
        return kind(f"{self.url}: {printable(message, 500)}")

    def _text(self, value: Any, name: str) -> str:
        """Returns a text of an answer."""
        text = value.get(name) if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise self._not_ours()
        return text

    def _not_ours(self) -> GlassloopError:
        return GlassloopError(f"{self.url} does not answer as a Glassloop server does; is the URL right?")

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._not_ours()
        return value

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Turns errors of the network into a GlassloopError."""
        import httpx2

        try:
            yield
        except httpx2.TimeoutException:
            raise GlassloopError(f"{self.url} did not answer in time") from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            reason = printable(str(error) or type(error).__name__, 200)
            raise GlassloopError(f"{self.url} cannot be reached: {reason}") from None
