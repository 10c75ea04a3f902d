"""The messages between an ingress and the engine replicas, plain values that can be pickled, and `Transport`,
which carries them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Pause
from glassloop.engine.protocol import Statistics
from glassloop.record.passes import PassRecord
from glassloop.record.run_parts import Beam
from glassloop.record.token import Refusal, Source, Token


class Identity(NamedTuple):
    """The model's files and the arithmetic. Two replicas choose the same tokens if both are equal."""

    model_hash: str
    op_set: str  # with the version of its arithmetic, or the architecture of the GPU


class Needs(NamedTuple):
    """The requirements of a request: the identity of the replica, and the adapter that the request names."""

    identity: Identity
    adapter: tuple[str, str] | None = None  # the name and the SHA-256


@dataclass(frozen=True)
class Route:
    """The part of a call that the router reads: which replicas may get it. The replica ignores it."""

    ids: tuple[int, ...] = ()  # a prefix of these may be cached
    only: str | None = None  # the one replica that is meant
    needs: Needs | None = None  # the replica must have this
    key: str = ""  # of the job or the question, if the call is one
    realm: str = ""  # of the request, if clients are kept apart

    @property
    def space(self) -> str:
        """What keys and values depend on beside the tokens: the SHA-256 of the adapter, and the realm."""
        adapter = self.needs.adapter[1] if self.needs is not None and self.needs.adapter is not None else ""
        return adapter + self.realm


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


class Revision(NamedTuple):
    """The state of a run with `revise` beside its token ids: its next token depends on it."""

    tokens: list[TokenData]  # with their numbers: surprising ones are taken back
    fork_at: int | None
    revised: int
    forks: dict[int, int]


@dataclass(frozen=True)
class RunSoFar:
    """A run as far as it has come. Its next token depends on this and on the options alone."""

    seed: int
    salt: int
    sample: int
    sampling: Sampling
    tokens: tuple[int, ...]
    revision: Revision | None = None  # if the run takes tokens back
    id: str = ""  # by which the replica can forget it
    records: tuple[bytes, ...] = ()  # of the tokens, if a stage needs them


class MaskFilling(NamedTuple):
    """How the runs of a job are written, if that is by filling masks."""

    options: Diffusion
    adapter: str  # the SHA-256 of what makes the model fill masks


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
    pause: Pause | None  # where the runs are interrupted
    drafts: bool
    priority: int
    elapsed: float  # seconds since the request came: its time goes on
    owner: str = ""  # the client whose request it is
    realm: str = ""  # the same, if clients are kept apart
    masks: MaskFilling | None = None  # None: from left to right
    route: Route = field(default_factory=Route)


@dataclass(frozen=True)
class Question:
    """A call of a function with the engine of a replica. It changes nothing there, so it may be repeated."""

    call: bytes  # the function, its arguments and its keyword arguments, by `pickling.dumps`
    seconds: float | None  # that it may take
    is_long: bool = False  # it may take long: it has to delay no short one
    has_events: bool = False  # the function takes `on_event`
    owner: str = ""  # the client whose question it is
    realm: str = ""  # the same, if clients are kept apart
    route: Route = field(default_factory=Route)


class Reply(NamedTuple):
    """An event of a question, or its answer, which is the last reply."""

    data: bytes  # by `pickling.dumps`
    is_answer: bool


class Facts(NamedTuple):
    """The counters and times of a run in one attempt so far."""

    cached_tokens: int
    queue: float
    prefill: float
    decode: float
    preempted: int
    proposed: int
    accepted: int
    draft_seconds: float


class End(NamedTuple):
    """The end of a run, as it is sent."""

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
    # To how many tokens, and the salt and the id of the run that continues.
    taken_back: tuple[int, int, str] | None = None
    pass_record: PassRecord | None = None  # of a pass over masks, which came after these tokens


@dataclass(frozen=True)
class Report:
    """The state of a replica, as it tells every ingress."""

    identity: Identity
    statistics: Statistics
    room: int  # the most tokens of one branch
    adapters: dict[str, str]  # the SHA-256 of each adapter, by its name
    can_diffuse: bool
    prefixes: frozenset[bytes]  # digests of the prefixes in its KV tree

    def has(self, needs: Needs) -> bool:
        """Returns whether this replica has all that a request needs."""
        if self.identity != needs.identity:
            return False
        return needs.adapter is None or self.adapters.get(needs.adapter[0]) == needs.adapter[1]


class Bulletin(NamedTuple):
    """One item of the stream from a replica to an ingress. An empty one says that the replica is alive."""

    news: list[News]
    report: Report | None


class Gone(Exception):
    """A replica that has died or cannot be reached."""


class Transport(Protocol):
    """Carries the calls of an ingress to the replicas, as `ServeTransport` does with Ray Serve. Raises `Gone`
    if a replica cannot be reached."""

    async def start(self, job: Job) -> None:
        """Computes a job on a replica of the router's choice; returns when it has ended. If the caller stops
        waiting, the job is cancelled."""

    async def cancel(self, replica: str, key: str, session: str, run: int | None = None) -> None:
        """Ends a job, or the run at this place of it."""

    def open(self, replica: str, session: str) -> AsyncIterator[Bulletin]: ...

    def ask(self, question: Question) -> AsyncIterator[Reply]:
        """Asks a replica of the router's choice. If the caller stops listening, the call is cancelled."""
