"""The hammer for some seconds: everything at once, and no 500, crash or hang. A wrong answer is found, saved
and sent again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from attacks import hammer
from attacks.harness import Answer, Server
from attacks.limits import LIMITS, SEED, cases
from attacks.manners import LEFT, Manner, streamed
from attacks.requests import JSON, Case, Client

_KINDS = ("plain", "stream", "leaves", "cut", "slow")


def test_everything_at_once_breaks_nothing() -> None:
    seen = hammer.hammer(SEED, cases(400), clients=4, neighbours=2, limit=120)
    assert seen["requests"] == cases(400)
    assert not seen["crashes"] and not seen["hangs"] and not seen["findings"], seen["findings"]
    assert set(seen["health"]["answers"]) == set(seen["token"]["answers"]) == {"200"}
    assert seen["health"]["longest_s"] <= LIMITS.health
    assert len(seen["routes"]) > 30  # of about 40
    json.dumps(seen)


@pytest.mark.parametrize("kind", _KINDS)
def test_every_way_of_sending_reaches_the_server(tiny: Server, kind: str) -> None:
    case = Case("POST", "/v1/completions", JSON, b'{"prompt": "Hi", "max_tokens": 2}')
    client = Client(tiny.connect)
    answer = Manner(kind, 0.01, 0.5 if kind == "cut" else 1.0).send(case, client, tiny.connect)
    client.close()
    if kind in ("leaves", "cut"):
        assert answer == LEFT
    else:
        assert isinstance(answer, Answer) and answer.status == 200, answer
        assert answer.body.startswith(b"data: " if kind == "stream" else b"{")
    assert not any(tiny.settle().values())


def test_only_objects_are_asked_to_stream() -> None:
    for body in (None, b"", b"[1]", b"\xff", b"[" * 100_000):
        assert streamed(Case("POST", "/v1/completions", JSON, body)).body == body


def test_a_wrong_answer_is_saved_and_sent_again(
    tiny: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here every 400 is wrong."""
    monkeypatch.setattr(hammer, "FOLDER", tmp_path)
    monkeypatch.setattr(hammer, "attacked", lambda: _Lent(tiny))
    monkeypatch.setattr(
        hammer,
        "judged",
        lambda case, key, answer: "refused" if isinstance(answer, Answer) and answer.status == 400 else "",
    )
    work = hammer.Hammer(tiny, SEED, 40, clients=2, limit=60)
    work.run()
    assert work.tally.findings and work.tally.done == 40
    file = Path(work.tally.findings[0][0])
    assert file.parent == tmp_path and json.loads(file.read_text())["trouble"] == "refused"
    monkeypatch.setattr(sys, "argv", ["hammer", "--again", str(file)])
    assert hammer.main() == 1
    assert "400 " in capsys.readouterr().out


class _Lent:
    """A server that stays when the block is left."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> Server:
        return self._server

    def __exit__(self, *_: object) -> None:
        pass
