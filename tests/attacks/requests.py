"""Generated requests over all routes, and what is wrong with an answer to one of them, if anything."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

from attacks.harness import Answer
from attacks.routes import Document, Field, Route, put
from hostile.grammars import GRAMMAR_EXAMPLES, SCHEMA_EXAMPLES, regex
from hostile.values import NUMBERS, TEXTS, dumps, spelled, text, value

JSON = {"content-type": "application/json"}
RUN, TREE = "@RUN@", "@TREE@"  # replaced by an id that is there when the request is sent
_SAFE_TYPES = ("application/json", "application/json; charset=utf-8")
_TYPES = (*_SAFE_TYPES, "text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data", "a/b;=")
_PATH = re.compile(r"(/tmp/|/root/|/home/|\.venv|site-packages|Traceback|\.py\b|0x[0-9a-f]{8})")
_COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
LATE = "no answer in time"
_CLOSED = "the connection was closed without an answer"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Case:
    """A request, and what was done to it."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    what: str = ""
    fields: tuple[str, ...] | None = None  # one of them is to be named if it is refused; None: no such claim

    def with_ids(self, run: str, tree: str) -> Case:
        path = self.path.replace(RUN, quote(run, safe="")).replace(TREE, quote(tree, safe=""))
        return Case(self.method, path, self.headers, self.body, self.what, self.fields)

    def told(self) -> str:
        body = b"" if self.body is None else self.body
        shown = repr(body if len(body) <= 600 else body[:600] + b"...")
        return f"{self.what}: {self.method} {self.path[:300]} {self.headers} {shown} ({len(body)} bytes)"


class Requests:
    """Makes requests. The same document and seed make the same ones."""

    def __init__(
        self,
        document: Document,
        rng: Random,
        glass: Callable[[Random], bytes] | None = None,
        brief: bool = False,  # bodies keep their small numbers of tokens, if these are not what is changed
    ) -> None:
        self._document = document
        self._rng = rng
        self._glass = glass
        self._brief = brief
        self._with_body = document.with_body
        self._fields = {route.path: document.fields(route) for route in self._with_body}
        self._others = [route for route in document.routes if route not in self._with_body]

    def next(self) -> Case:
        rng = self._rng
        kind = rng.random()
        if kind < 0.62:
            return self._body_case()
        if kind < 0.70:
            return self._damaged()
        if kind < 0.95:
            return self._other()
        return self._odd()

    # ── bodies ─────────────────────────────────────────────────────────────────────────────────────────────

    def _body_case(self) -> Case:
        rng, route = self._rng, self._rng.choice(self._with_body)
        body: Any = route.good()
        if rng.random() < 0.4:
            few = {name: body[name] for name in _COUNTS if name in body and self._brief}
            body |= self._document.valid(route.body or {}, rng, 2)
            for name in _COUNTS:
                body.pop(name, None)
            body |= few
            if self._brief and isinstance(body.get("sampling"), dict):
                body["sampling"]["max_tokens"] = 2
            what = "valid"
        else:
            what = "good"
        chosen = rng.choices(self._fields[route.path], k=rng.choice([0, 1, 1, 1, 1, 2, 4]))
        given: Any = None
        for each in chosen:
            given = self._value(each)
            body = put(body, each.path, given)
            what += f", {'.'.join(map(str, each.path))}"
        if rng.random() < 0.04:
            body = put(body, (text(rng),), value(rng))
            chosen = []
        claim = None
        path = _fill(route, rng)
        known = "{" not in route.path or RUN in path
        # An object is refused for one of its own fields, which nobody here knows.
        if what.startswith("good") and len(chosen) == 1 and known and not isinstance(given, dict):
            claim = tuple(str(part) for part in chosen[0].path if isinstance(part, str))
        raw = dumps(body)
        if raw.decode(errors="ignore").encode() != raw:  # not UTF-8, so the error names a place, not a field
            claim = None
        return Case("POST", path, dict(JSON), raw, what, claim)

    def _value(self, field: Field) -> Any:
        """Something hostile for this very field, or for any."""
        rng, kind, last = self._rng, self._rng.random(), field.path[-1]
        if last in ("grammar",) and kind < 0.7:
            return rng.choice(GRAMMAR_EXAMPLES)
        if last in ("json_schema", "schema", "parameters") and kind < 0.7:
            return rng.choice(SCHEMA_EXAMPLES)
        if last == "regex" and kind < 0.7:
            fixed = ("(a+)+$", "a{1,900}{1,900}", "(?=a)", "[", "\\p{L}{0,99}", "a|" * 300, ".*")
            return rng.choice([*fixed, text(rng), regex(rng)])
        if kind < 0.35:
            types = field.types
            if types & {"integer", "number"}:
                return rng.choice(NUMBERS)
            if "array" in types:
                items = field.schema.get("items") or {}
                one = self._document.valid(items, rng, 2) if kind < 0.1 else value(rng, 1)
                # A body larger than the server takes is refused while it is sent: test_sizes.py has those.
                return [one] * min(rng.choice([0, 1, 2, 65, 1025, 3000]), 1 + 4_000_000 // len(spelled(one)))
            if "string" in types:
                return rng.choice(TEXTS)
        if kind < 0.5:
            return self._document.valid(field.schema, rng)
        return value(rng)

    def _damaged(self) -> Case:
        """JSON that is none, or comes as something else, or in odd bytes."""
        rng, route = self._rng, self._rng.choice(self._with_body)
        raw = bytearray(
            dumps(put(route.good(), ("extra",), value(rng)) if rng.random() < 0.3 else route.good())
        )
        headers = dict(JSON)
        kind = rng.randrange(7)
        if kind == 0:
            raw = raw[: rng.randrange(len(raw))]
        elif kind == 1:
            for _ in range(rng.randrange(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        elif kind == 2:
            raw = bytearray(
                rng.choice([b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe{}", b"\xef\xbb\xbf{}"])
            )
        elif kind == 3:
            raw = bytearray(rng.choice([b"[", b'{"a":', b'{"prompt":[']) * rng.choice([10, 1000, 100_000]))
        elif kind == 4:
            headers = {"content-type": rng.choice(_TYPES)}
        elif kind == 5:
            raw = bytearray(json.dumps(route.good()).encode(rng.choice(["utf-16", "utf-32", "utf-8"])))
        else:
            keys = b",".join(b'"k%d":1' % number for number in range(rng.choice([1, 100, 5000])))
            raw = bytearray(raw[:-1] + b"," + keys + b"}")
        return Case("POST", _fill(route, rng), headers, bytes(raw), f"damaged {kind}")

    # ── paths, queries, files ──────────────────────────────────────────────────────────────────────────────

    def _other(self) -> Case:
        rng, route = self._rng, self._rng.choice(self._others)
        if route.binary:
            file = self._glass(rng) if self._glass is not None else rng.randbytes(rng.randrange(200))
            headers = {"content-type": "application/octet-stream"}
            return Case(route.method, route.path, headers, file, "glass")
        query: dict[str, str] = {}
        often = rng.choice([0.0, 0.3, 0.7])  # most queries with several odd values are refused at once
        for each in route.parameters:
            if each["in"] == "query" and rng.random() < often:
                valid = self._document.valid(each.get("schema", {}), rng)
                query[each["name"]] = str(valid) if rng.random() < 0.4 else _plain(value(rng, 1))
        if "explain" in route.path and rng.random() < 0.7:
            names = [each.path[0] for each in self._fields[self._with_body[0].path] if len(each.path) == 1]
            for name in rng.choices(names, k=rng.choice([1, 2])):
                query[str(name)] = _plain(self._value(Field((name,), {"type": "integer"})))
        if route.path.endswith("/events"):
            query.setdefault("close", "true")
        if route.method == "DELETE" and rng.random() < 0.7:
            return Case(route.method, route.path.replace("{id}", "nobody"), {}, None, "delete")
        joined = "&".join(
            f"{quote(name)}={quote(value[:20_000], errors='replace')}" for name, value in query.items()
        )
        path = _fill(route, rng) + ("?" + joined if joined else "")
        headers = dict(JSON) if route.method == "POST" else {}
        return Case(route.method, path, headers, b"{}" if route.method == "POST" else None, "other")

    def _odd(self) -> Case:
        """Other methods, made-up paths, odd headers."""
        rng, route = self._rng, self._rng.choice(self._document.routes)
        path = _fill(route, rng)
        if rng.random() < 0.4:
            path = rng.choice(
                [path + "/", path + "/..%2f..", "/" + quote(text(rng), errors="replace")[:2000], path.upper()]
            )
        method = rng.choice(["HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "GET", "POST", "PROPFIND"])
        values = ["x", "1" * 300, "bytes=0-", "*/*;q=nan", "\xe9", "gzip", "-1"]
        names = [
            "last-event-id",
            "accept",
            "accept-encoding",
            "cookie",
            "range",
            "x-forwarded-for",
            "expect-not",
        ]
        return Case(method, path, {rng.choice(names): rng.choice(values)}, None, "odd")


def _plain(made: Any) -> str:
    return made if isinstance(made, str) else spelled(made)


def _fill(route: Route, rng: Random) -> str:
    """The path with its parameters: mostly ids that are there."""

    def one(found: re.Match[str]) -> str:
        name = found[1]
        if rng.random() < 0.15:
            return quote(_plain(value(rng, 0))[:3000] or "x", safe="", errors="replace")
        if name == "id":
            return TREE if "/trees/" in route.path else RUN
        if name == "index":
            return str(rng.choice([0, 0, 1, 2, 3, 10**6]))
        if name == "name":
            return rng.choice(["attention", "layers", "neighbours", "nothing"])
        return "tiny"

    return re.sub(r"\{(\w+)\}", one, route.path)


def wrong(case: Case, answer: Answer) -> str:
    """What is wrong with an answer; nothing where it is as promised."""
    status = answer.status
    if status >= 500 and status != 501:
        return f"answered {status}: {answer.body[:300]!r}"
    if status < 400 or case.method == "HEAD":
        return ""
    try:
        error = answer.error
    except (AssertionError, ValueError) as trouble:
        return f"{status} is in no protocol's shape: {trouble}: {answer.body[:300]!r}"
    expected = protocol_of(case.path.rstrip("/"))  # a slash at the end of a path is ignored
    if (
        status not in (408, 431) and answer.protocol != expected
    ):  # these two may come before the path is known
        return f"{status} is in {answer.protocol}'s shape, not {expected}'s: {answer.body[:300]!r}"
    message, given = error["message"], (case.body or b"").decode("latin-1") + case.path
    leaked = _PATH.search(message)
    if leaked and leaked[0] not in given:
        return f"{status} tells of this machine: {message[:300]}"
    if _CONTROL.search(message) or len(message) > 2000:
        return f"{status} has a message that is not one short line: {message[:300]!r}"
    if status in (400, 413) and case.fields is not None:
        said = f"{error['param'] or ''} {message}"
        named = re.split(r"[.\[]", error["param"] or "", maxsplit=1)[0]
        inner = f'"{named}"' in given  # a field of a value in there, or one that no longer fits the others
        if not inner and not any(name in said for name in case.fields):
            return f"{status} names none of {', '.join(case.fields)}: {error}"
    return ""


def protocol_of(path: str) -> str:
    """Whose errors are read by the clients of a path."""
    if re.match(r"/v1/messages(/|\?|$)", path):
        return "Anthropic"
    ollamas = r"/api/(chat|generate|embed|embeddings|show|tags|ps|version)(\?|$)"
    return "Ollama" if re.match(ollamas, path) else "OpenAI"


class Client:
    """Sends cases on one kept-alive connection. Streams are read for a short while only."""

    def __init__(
        self, connect: Callable[[], http.client.HTTPConnection], stream_seconds: float = 1.0
    ) -> None:
        self._connect = connect
        self._connection = connect()
        self._stream_seconds = stream_seconds

    def send(self, case: Case) -> Answer | str:
        """The answer, or what went wrong on the way to it. A connection that was closed meanwhile, as it may
        be between two requests, is opened again once."""
        answer = self._send(case)
        return self._send(case) if answer == _CLOSED else answer

    def _send(self, case: Case) -> Answer | str:
        try:
            self._connection.request(case.method, case.path, case.body, case.headers)
            answer = self._connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            if names.get("content-type", "").startswith("text/event-stream"):
                return Answer(answer.status, names, self._some(answer))
            body = answer.read()
            if names.get("connection") == "close":
                self.reconnect()
            return Answer(answer.status, names, body)
        except TimeoutError:
            self.reconnect()
            return LATE
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self.reconnect()
            return _CLOSED
        except (OSError, http.client.HTTPException) as error:
            self.reconnect()
            return f"the connection failed: {error!r}"

    def _some(self, answer: http.client.HTTPResponse) -> bytes:
        sock = self._connection.sock
        sock.settimeout(self._stream_seconds)
        parts = []
        try:
            while part := answer.read1(1 << 16):
                parts.append(part)
        except TimeoutError:
            pass
        self.reconnect()
        return b"".join(parts)

    def reconnect(self) -> None:
        self._connection.close()
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()
