"""The messages between an ingress and the engine replicas: plain values that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassloop.decode.sampling import Sampling
from glassloop.engine.protocol import Statistics
from glassloop.trace.run import Beam
from glassloop.trace.token import Refusal, Source, Token


class Identity(NamedTuple):
    """What must be equal for two replicas to choose the same tokens: the model's files and the arithmetic."""

    model_hash: str
    op_set: str  # with the version of its arithmetic, or the architecture of the GPU


@dataclass(frozen=True)
class Route:
    """Where a call may go. The router reads it; the replica ignores it."""

    ids: tuple[int, ...] = ()  # a prefix of these may be cached
    only: str | None = None  # the one replica that is meant
    identity: Identity | None = None  # the replica must be equal to this
    key: str = ""  # of the job, if the call is one


@dataclass(frozen=True)
class RunSoFar:
    """A run as far as it has come. Its next token depends on this and on the options alone."""

    seed: int
    salt: int
    sample: int
    sampling: Sampling
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """Runs of one request that a replica begins or continues."""

    key: str  # another one for every attempt, so that late news of an earlier attempt is known by it
    session: str  # of the ingress that is told
    prompt_ids: tuple[int, ...]
    sampling: Sampling  # of the request
    runs: tuple[RunSoFar, ...]
    forced: tuple[int, ...]  # tokens that come next, whatever the model says
    scored: bool  # the records of the prompt are known already
    drafts: bool
    priority: int
    elapsed: float  # seconds since the request came: its time goes on
    route: Route = field(default_factory=Route)


@dataclass(frozen=True)
class Question:
    """A call that computes something about a run or a text and changes nothing, so it may be repeated."""

    name: str
    run: bytes | None  # a glass file
    values: dict[str, Any]
    seconds: float | None  # that it may take
    route: Route = field(default_factory=Route)


class TokenData(NamedTuple):
    """A token with its record, as it is sent."""

    record: bytes
    text: str
    bytes: bytes
    source: Source
    seconds: float
    refused: Refusal | None

    @classmethod
    def of(cls, token: Token) -> TokenData:
        return cls(token.chosen.data, token.text, token.bytes, token.source, token.seconds, token.refused)


class Facts(NamedTuple):
    """What an attempt has counted for a run so far."""

    cached_tokens: int
    queue: float
    prefill: float
    decode: float
    preempted: int
    proposed: int
    accepted: int
    draft_seconds: float


class End(NamedTuple):
    reason: str
    detail: str | None
    tail: str
    token: TokenData | None
    error: BaseException | None
    beams: list[Beam]
    dropped: bool  # a beam search has found fewer texts than there are runs


class News(NamedTuple):
    """Tokens of a run, and its end. The last token of a run comes with the end, never before it: a replica
    that continued after it would choose one more."""

    key: str
    run: int  # its place in the job
    tokens: list[TokenData]
    prompt: list[TokenData]
    facts: Facts
    end: End | None


@dataclass(frozen=True)
class Report:
    """The state of a replica, as it tells every ingress."""

    identity: Identity
    statistics: Statistics
    room: int  # the most tokens of one branch
    prefixes: frozenset[bytes]  # digests of the prefixes in its KV tree


class Bulletin(NamedTuple):
    """One item of the stream from a replica to an ingress. An empty one says that the replica is alive."""

    news: list[News]
    report: Report | None


class Gone(Exception):
    """A replica that has died or cannot be reached."""
