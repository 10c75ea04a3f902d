"""`LanguageModel`: a model as servers, searches and edits see it, wherever it is computed.

        prompt, options ──▶ requests (RequestMaker) ──▶ Request ──▶ engine (Engine) ──▶ tokens of its runs
        a run, a place  ──▶ explain, replay, lens, embed, apply ──▶ answers about runs and texts

`LLM` computes in this process, `ClusterModel` on replicas, and `UpstreamEngine` asks another server. Each has
a maker of requests and an engine, and answers questions in its own way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import afollow, complete, first_run, follow
from glassloop.engine.protocol import DrafterKind, Engine, Handover, Statistics
from glassloop.engine.request import Listener, Request, ignore
from glassloop.engine.request_maker import Messages, Prompt, RequestMaker, check_priority
from glassloop.errors import GlassloopError
from glassloop.model.config import ModelConfig
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.check import check_number

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.engine.lens_reader import LensReader
    from glassloop.engine.tasks.masked import Mask
    from glassloop.record.verdict import ReplayVerdict

T = TypeVar("T")


class LanguageModel(ABC):
    """Prepares requests, has an engine compute them, and answers questions about runs. Everything may be
    called from any thread."""

    requests: RequestMaker
    engine: Engine

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """The name of the model in records, answers and messages."""
        return self.requests.name

    @name.setter
    def name(self, name: str) -> None:
        self.requests.name = name

    @property
    def config(self) -> ModelConfig:
        return self.requests.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.requests.tokenizer

    @property
    def default_sampling(self) -> Sampling:
        """The options of a request that gives none."""
        return self.requests.default_sampling

    @default_sampling.setter
    def default_sampling(self, sampling: Sampling) -> None:
        self.requests.default_sampling = sampling

    @property
    def drafts(self) -> bool:
        """Whether requests may use speculative decoding."""
        return self.requests.drafts

    @drafts.setter
    def drafts(self, drafts: bool) -> None:
        self.requests.drafts = drafts

    @property
    @abstractmethod
    def op_set(self) -> str:
        """The op set that computes the requests, with its instruction set if it has several."""

    @property
    def ops(self) -> str:
        """The name of the op set."""
        return self.op_set.split()[0]

    @property
    @abstractmethod
    def model_hash(self) -> str:
        """The SHA-256 that identifies the model."""

    @property
    @abstractmethod
    def kv_memory(self) -> int:
        """The number of bytes that keys and values may take."""

    @abstractmethod
    def has_room(self, tokens: int) -> bool:
        """Returns whether a branch of this many tokens fits into the memory for keys and values."""

    @property
    def adapters(self) -> Mapping[str, str]:
        """The SHA-256 of each adapter that is loaded, by its name."""
        return {}

    @property
    def keep(self) -> Callable[[Run], None] | None:
        """A function that is given every run at its end, or None."""
        return None

    @property
    @abstractmethod
    def mask(self) -> Mask:
        """What masked rows are for the model. Raises if it has been trained on none. Not for an event
        loop."""

    @property
    def can_diffuse(self) -> bool:
        """Whether texts can be written by diffusion: the model has masked rows, or an adapter for them."""
        return False

    @property
    def drafter(self) -> DrafterKind | None:
        """What makes drafts, or None: nothing does, or it is not known here."""
        return None

    @property
    def upstream(self) -> str | None:
        """The other server that computes the model, in a few words, or None. Much is not known of its
        runs."""
        return None

    def check_computes(self, what: str) -> None:
        """Raises if another server computes this model: searches, edits and diffusion need more than that one
        offers."""
        if self.upstream is not None:
            raise needs_own_model(what)

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        listener: Listener = ignore,
        compiled: Compiled | None = None,
        messages: Messages | None = None,
    ) -> Request:
        """Returns a request, checked, with its runs; none of it is computed yet. `compiled` is the result of
        `compile` for these options; without it they are compiled here, and an error is the request's own.
        `messages` is the conversation that the prompt was rendered from, for the record."""
        return self.requests.prepare(
            prompt, sampling, priority=priority, listener=listener, compiled=compiled, messages=messages
        )

    def prepare_chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        template: Mapping[str, Any] | None = None,
    ) -> Request:
        """Returns a request for the next turn of a conversation. `template` has variables of the model's chat
        template, and `continue_final`: True continues the last message. A name that the template does not
        have is an error."""
        ids = self.requests.encode_chat(messages, template)
        return self.prepare(ids, sampling, messages=messages, priority=priority)

    def prepare_fork(
        self, run: Run, at: int, *, listener: Listener = ignore, priority: int = 0, **changes: Any
    ) -> Request:
        """Returns the request that `fork` runs with the same changes: `token`, `text` or options."""
        from glassloop.engine.fork import fork_request

        check_priority(priority)
        request = fork_request(self.requests, run, at, **changes)
        request.listener, request.priority = listener, priority
        return request

    def prepare_rest(self, run: Run, *, timeout: float | None = None) -> Request:
        """Returns a request that continues a run which was cancelled or interrupted, with the same tokens as
        if it had not been. `timeout` is for the rest, where the run's own is longer or missing."""
        from glassloop.engine.fork import rest_request

        if timeout is not None:
            check_number("timeout", timeout, 0, 1e9)
        return rest_request(self.requests, run, timeout)

    def compile(self, sampling: Sampling) -> Compiled:
        """Builds all that a request with these options needs (stop strings, bad words, a grammar), or raises
        what is wrong with them. Takes up to seconds: not for an event loop's thread."""
        return self.requests.compile(sampling)

    def piece(self, token: int) -> str:
        """Returns the text of a token by itself."""
        return self.requests.piece(token)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids. One that the tokenizer does not have is written as `piece` does."""
        return self.requests.decode(token_ids)

    # ── computing ──────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        """Queues a request; its listener is told of the tokens. If `may_refuse`, raises `Busy` where too many
        wait already."""
        if request.built is None:
            request.built = self.requests.build(request.sampling)
        self.engine.submit(request, may_refuse)

    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        """Ends a request, or one run of it, as `Engine.cancel` does."""
        self.engine.cancel(request, wait, run)

    def check_may_wait(self) -> None:
        """Raises on the engine's own thread, on which a call that waits for the engine would never end."""
        self.engine.check_may_wait()

    def after_step(self, job: Callable[[], object]) -> None:
        """Calls a function after the current step. For listeners that are told of the end of a run and want
        to continue it by another request, which is possible only then."""
        job()

    def follow(self, request: Request, *, settled: bool = False) -> Iterator[Token]:
        """Yields the tokens of a prepared request. Leaving the iteration cancels it. With `settled`, a token
        comes when it cannot be taken back any more (`Sampling.revise`)."""
        tokens = follow(self.engine, request)
        if settled and request.sampling.revise:
            from glassloop.engine.tasks.revise import settled_tokens

            return settled_tokens(tokens, request.sampling.revise_window)
        return tokens

    def afollow(self, request: Request) -> AsyncIterator[Token]:
        return afollow(self.engine, request)

    def complete(self, request: Request) -> Run:
        """Computes a request and returns its first run; raises the error of that run."""
        complete(self.engine, [request], progress=False)
        return first_run(request)

    def fork(self, run: Run, at: int, **changes: Any) -> Run:
        """Makes a new run from the first `at` tokens of another."""
        return self.complete(self.prepare_fork(run, at, **changes))

    @abstractmethod
    def forget(self, run: Run) -> None:
        """Forgets a run that was deleted: what the engine keeps of its text, to guess from or not to compute
        it again, goes as far as no other text continues it. Where clients are kept apart, only what was kept
        for the one in this context. Not for an event loop."""

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def apply(
        self,
        function: Callable[..., T],
        *args: Any,
        deadline: Deadline | None = None,
        on_event: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> T:
        """Returns `function(llm, *args, deadline=deadline, **options)`, where `llm` is a model that computes
        in its process: this one, or that of a replica, and then of another one if that replica dies.

        So `function` is at the top level of a module, is given plain values and runs, and returns such; what
        it draws has a seed among them. With `on_event`, it is given an `on_event` to report its progress in
        plain values, the same in the same order whenever it is called; each is reported here once. Raises for
        a model that another server computes. Not for an event loop.
        """

    @abstractmethod
    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        """Returns why the token at this place of a run is there; `explain_token` has the options."""

    @abstractmethod
    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> ReplayVerdict:
        """Computes a recorded run once more, from the token `first` on, and compares every number."""

    @property
    @abstractmethod
    def lens(self) -> LensReader:
        """The lenses, computed when they are asked for."""

    @abstractmethod
    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        """Returns the mean of the last hidden states of all tokens, [dim]."""

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self) -> list[Statistics]:
        """Returns the state of the engine, or one entry for each replica. It is quick."""
        return self.engine.statistics(self.name)

    @property
    def ready(self) -> bool:
        """Whether a request that comes now would be computed."""
        return True

    @property
    def problem(self) -> str | None:
        """What is wrong with the engine or its replicas now, or None."""
        return None

    def handovers(self) -> list[Handover]:
        """Returns the latest requests that were continued on another replica, the oldest first."""
        return []

    def close(self) -> None:
        """Ends what runs, as cancelled, and frees the engine."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def needs_own_model(what: str) -> GlassloopError:
    return GlassloopError.about(what, "is given; only an engine with a model of its own computes that")
