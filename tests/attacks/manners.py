"""Ways in which a client sends a request besides the plain one: it leaves early, sends its body slowly or in
part, asks for a stream, or comes without a key.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from attacks.harness import Answer
from attacks.requests import Case, Client

LEFT = "left"  # the client has gone without waiting for an answer
_STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/api/diffusions")
_PIECES = 5  # of a body that is sent slowly


@dataclass(frozen=True)
class Manner:
    """How one request is sent. The same fields send it in the same way again."""

    name: str = "plain"
    seconds: float = 0.0  # until the client leaves, or between two pieces of a body
    share: float = 1.0  # of the body, that is sent

    def send(
        self, case: Case, client: Client, connect: Callable[[], http.client.HTTPConnection]
    ) -> Answer | str:
        """Returns the answer, or what went wrong on the way to it. A client that leaves has none."""
        if self.name == "stream":
            return client.send(streamed(case))
        if self.name in ("leaves", "cut", "slow"):
            return self._send_in_pieces(case, connect())
        return client.send(case)

    def _send_in_pieces(self, case: Case, connection: http.client.HTTPConnection) -> Answer | str:
        body = case.body or b""
        pieces = _PIECES if self.name == "slow" else 1
        size = -(-int(len(body) * self.share) // pieces)
        try:
            connection.putrequest(case.method, case.path, skip_accept_encoding=True)
            for name, value in case.headers.items():
                connection.putheader(name, value)
            if case.body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders()
            for number in range(pieces):
                connection.send(body[number * size : (number + 1) * size])
                time.sleep(self.seconds)
            if self.name != "slow":
                return LEFT
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            if names.get("content-type", "").startswith("text/event-stream"):
                return Answer(answer.status, names, answer.read1(1 << 16))
            return Answer(answer.status, names, answer.read())
        except TimeoutError:
            return "no answer in time"
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # A body that is refused while it is sent closes the connection, maybe before its answer is read.
            return LEFT if len(body) > 1 << 16 or self.name != "slow" else f"the connection failed: {error!r}"
        finally:
            connection.close()


def drawn(rng: Random, case: Case) -> Manner:
    """Returns a manner for a request: mostly the plain one."""
    kind = rng.random()
    if kind < 0.06:
        return Manner("leaves", rng.choice([0.0, 0.01, 0.05, 0.2]))
    if kind < 0.08 and case.body:
        return Manner("cut", rng.choice([0.0, 0.02]), rng.random())
    if kind < 0.11 and case.body:
        return Manner("slow", rng.choice([0.005, 0.02, 0.05]))
    if kind < 0.19 and case.path in _STREAMED:
        return Manner("stream")
    return Manner()


def streamed(case: Case) -> Case:
    """Returns the request with `stream` set, if its body is an object."""
    try:
        body = json.loads(case.body or b"")
    except (ValueError, RecursionError):
        return case
    return (
        replace(case, body=json.dumps(body | {"stream": True}).encode()) if isinstance(body, dict) else case
    )
