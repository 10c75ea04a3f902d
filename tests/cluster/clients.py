"""Clients of the long tests: each asks for an answer of some kind over HTTP, follows its stream to the end,
and keeps everything that must be the same whichever engine computes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from glassloop.record.format.glass_file import from_bytes
from glassloop.record.run import Run

PATIENCE = 300.0  # seconds without a byte, after which a client gives up
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# The options of each kind of run.
KINDS: dict[str, dict[str, object]] = {
    "sampled": {"temperature": 1.0, "top_p": 0.95, "max_tokens": 90, "ignore_eos": True},
    "greedy": {"temperature": 0.0, "max_tokens": 90, "ignore_eos": True, "repetition_penalty": 1.1},
    "schema": {"json_schema": SCHEMA, "max_tokens": 60, "temperature": 0.8},
    "samples": {"n": 4, "max_tokens": 50, "temperature": 0.9, "ignore_eos": True},
    "beams": {"beam_width": 3, "max_tokens": 24},
    "stops": {"stop": ["\n\n", "the end of the"], "max_tokens": 90, "temperature": 0.7},
}
LONG_KINDS = {
    **KINDS,
    "revised": {"temperature": 1.2, "max_tokens": 60, "revise": 3, "revise_window": 8, "revise_bits": 4.0},
    "diffusion": {"temperature": 0.8, "max_tokens": 24},
}
DIFFUSION = {"block": 8, "passes": 4}
FORK = {"at": 12, "text": " but then", "sampling": {"temperature": 0.6}}


@dataclass(frozen=True)
class Asked:
    """A request: the same one has the same answer."""

    kind: str
    question: str
    seed: int


@dataclass
class Answer:
    """What came of a request: `told` is the stream without times and ids, `runs` are the records."""

    told: object
    runs: list[Run] = field(default_factory=list)

    def check_same(self, other: Answer) -> None:
        """Raises if one token or one number is not that of the other answer."""
        assert [(run.finish_reason, run.stop_reason) for run in self.runs] == [
            (run.finish_reason, run.stop_reason) for run in other.runs
        ]
        assert self.told == other.told
        for run, expected in zip(self.runs, other.runs, strict=True):
            assert run.token_ids == expected.token_ids
            assert run.tokens == expected.tokens
            assert (run.text, run.finish_reason, run.end) == (
                expected.text,
                expected.finish_reason,
                expected.end,
            )


def ask(url: str, asked: Asked) -> Answer:
    """Returns the answer of a server to a request."""
    session = {"x-session-id": os.urandom(8).hex()}  # of several ingresses, the same one
    with httpx.Client(base_url=url, headers=session, timeout=PATIENCE) as client:
        return ASKING.get(asked.kind, follow_runs)(client, asked)


def follow_runs(client: httpx.Client, asked: Asked) -> Answer:
    """Starts runs and follows their events."""
    body: dict[str, object] = {"prompt": asked.question, "sampling": _sampling(asked.kind, asked.seed)}
    if asked.kind == "diffusion":
        body["diffusion"] = DIFFUSION
    runs = _posted(client, "/api/runs", body)["runs"]
    events = list(_events(client, f"/api/trees/{runs[0]['tree']}/events?close=true"))
    return _followed(client, events)


def follow_fork(client: httpx.Client, asked: Asked) -> Answer:
    """Follows a run, and then another text after its first tokens."""
    body = {"prompt": asked.question, "sampling": _sampling("sampled", asked.seed)}
    (parent,) = _posted(client, "/api/runs", body)["runs"]
    path = f"/api/trees/{parent['tree']}/events?close=true"
    before = list(_events(client, path))
    _posted(client, f"/api/runs/{parent['id']}/edit", FORK)
    return _followed(client, [*before, *_events(client, f"{path}&after={before[-1][1]['seq']}")])


def follow_chat(client: httpx.Client, asked: Asked) -> Answer:
    """Streams two choices with OpenAI's own client."""
    from openai import OpenAI

    text: dict[int, str] = {}
    numbers: dict[int, list[object]] = {}
    ends: dict[int, list[str]] = {}
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as openai:
        stream = openai.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": asked.question}],
            seed=asked.seed,
            n=2,
            max_tokens=60,
            temperature=0.9,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            **({"response_format": FORMAT} if asked.kind == "chat schema" else {}),
        )
        for choice in (choice for chunk in stream for choice in chunk.choices):
            text[choice.index] = text.get(choice.index, "") + (choice.delta.content or "")
            if choice.logprobs is not None:
                content = choice.logprobs.content or []
                numbers.setdefault(choice.index, []).extend(each.model_dump() for each in content)
            if choice.finish_reason is not None:
                ends.setdefault(choice.index, []).append(choice.finish_reason)
    return Answer((text, numbers, ends))


FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


def wait_for_search(client: httpx.Client, asked: Asked) -> Answer:
    """Waits for the answer of a search, with all of its paths and decisions."""
    body = {
        "messages": [{"role": "user", "content": asked.question}],
        "seed": asked.seed,
        "max_tokens": 24,
        "temperature": 0.8,
        "search": {"method": "vote", "n": 3, "extract": "number", "paths": True},
    }
    answer = _posted(client, "/v1/chat/completions", body)
    tree = _got(client, f"/api/runs/{answer['search']['id']}")["tree"]
    paths = sorted(_got(client, f"/api/runs?tree={tree}")["runs"], key=lambda run: run["name"])
    told = answer["choices"], [path["text"] for path in answer["search"]["paths"]]
    return Answer(told, [_exported(client, run["id"]) for run in paths])


def wait_for_edit(client: httpx.Client, asked: Asked) -> Answer:
    """Waits for an edit, with every proposal."""
    body = {
        "before": asked.question,
        "after": " That is all.",
        "tokens": 4,
        "candidates": 4,
        "sampling": {"seed": asked.seed},
    }
    answer = _posted(client, "/api/edits/infill", body)
    numbers = [(each["ids"], each["own_bits"], each["following_bits"]) for each in answer["proposals"]]
    return Answer((answer["text"], numbers), [_exported(client, answer["run"])])


ASKING: dict[str, Callable[[httpx.Client, Asked], Answer]] = {
    "fork": follow_fork,
    "chat": follow_chat,
    "chat schema": follow_chat,
    "search": wait_for_search,
    "edit": wait_for_edit,
}
ALL_KINDS = (*LONG_KINDS, *ASKING)


# ── what is sent ───────────────────────────────────────────────────────────────────────────────────────────


def _sampling(kind: str, seed: int) -> dict[str, object]:
    return {**LONG_KINDS[kind], "seed": seed}


def _posted(client: httpx.Client, path: str, body: object) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def _got(client: httpx.Client, path: str) -> dict[str, Any]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _exported(client: httpx.Client, id: str) -> Run:
    answer = client.get(f"/api/runs/{id}/export")
    assert answer.status_code == 200, answer.text
    return next(run for run in from_bytes(answer.content) if run.id == id)


def _events(client: httpx.Client, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the events of a stream, each with its name."""
    name = ""
    with client.stream("GET", path) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def _followed(client: httpx.Client, events: list[tuple[str, dict[str, Any]]]) -> Answer:
    """Returns the events of each run, in the order in which runs began, and the records of these runs."""
    numbers = [data["seq"] for _, data in events]
    assert numbers == list(range(1, len(events) + 1))  # each event once
    by_run: dict[str, list[object]] = {}
    for name, data in events:
        by_run.setdefault(data["run"], []).append((name, _plain(name, data)))
    return Answer(list(by_run.values()), [_exported(client, run) for run in by_run])


# Of a token: who proposed it, and when it came. Drafts depend on what was computed before.
_OF_COMPUTING = ("seq", "run", "seconds", "took", "source", "refused")


def _plain(name: str, data: dict[str, Any]) -> object:
    """Returns the part of an event that does not depend on who computes it."""
    if name == "token":
        return {key: value for key, value in data.items() if key not in _OF_COMPUTING}
    if name == "taken_back":
        return data["to"]
    if name == "pass":
        return {key: value for key, value in data["frame"].items() if key != "seconds"}
    wanted = ("sample", "seed", "salt", "fork_at")
    if name == "end":
        wanted = ("text", "finish_reason", "stop_reason", "logprob")
    return {key: data["summary"][key] for key in wanted}
