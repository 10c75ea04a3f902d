"""`Service`: where HTTP requests meet the engine. It holds what endpoints share, and checks what clients send
against the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Literal

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.engine.language_model import LanguageModel
from glassloop.engine.request import Request
from glassloop.engine.request_maker import Prompt
from glassloop.errors import LengthError, ModelError
from glassloop.record.messages import Message
from glassloop.server.http.bodies import Bodies
from glassloop.server.http.clients import SharedPlaces
from glassloop.server.http.errors import APIError
from glassloop.server.operation.logs import Log
from glassloop.server.operation.metrics import Metrics
from glassloop.server.operation.settings import ServerSettings, public_name
from glassloop.server.operation.workers import Pools
from glassloop.server.runs.control import RunControl
from glassloop.server.runs.index import RunIndex
from glassloop.server.runs.notes import Notes
from glassloop.server.runs.storage import RunStorage
from glassloop.server.thread_work import ThreadWork

LoadState = Literal["loaded", "loading", "unloaded"]  # a request to a model that is not loaded waits for it
_MOST_NAMED = 20  # models and adapters that an error lists
MOST_FOLLOWERS = 256  # streams of events of runs and trees
MOST_TEXT = 2_000_000  # characters of all texts that one request brings for the model


class Service:
    """One model that is served: its engine, settings and runs, and what is done with them. `threads` has the
    work on threads, `control` starts and ends runs."""

    def __init__(
        self, llm: LanguageModel, settings: ServerSettings, log: Log, storage: RunStorage | None = None
    ) -> None:
        self.llm = llm
        llm.name = settings.served_name  # answers, records and errors must not show paths of this machine
        self.settings = settings
        self.log = log
        self.pools = Pools()
        self.runs = RunIndex(settings.in_memory, storage, self.pools.finding, apart=settings.separates_runs)
        self.notes = Notes(self.runs)
        self.metrics = Metrics(lambda: self.llm, storage)
        self.bodies = Bodies(settings.most_body, self.pools)
        self.draining = False
        self.state: LoadState = "loaded"
        self.neighbours: tuple[str, ...] = ()  # the names of other models at the same address
        self.followers = SharedPlaces(MOST_FOLLOWERS)  # streams of events that are open
        self.threads = ThreadWork(settings, self.pools, lambda: self.draining)
        self.control = RunControl(
            lambda: self.llm,
            settings,
            self.runs,
            self.notes,
            self.pools,
            self.metrics,
            log,
            lambda: self.draining,
        )
        self._fingerprint: str | None = None
        self._hashing = Lock()  # held while the model's files are hashed

    @property
    def name(self) -> str:
        return self.settings.served_name

    def public_name(self, model: str) -> str:
        """Returns the name of a run's model, which may be another than this server's, without its path."""
        return self.name if model == self.settings.model else public_name(model)

    @property
    def fingerprint(self) -> str | None:
        """What determines an answer beside the request: the model's files and the op set. None if the files
        cannot be read any more. Hashing them may take seconds: not for the event loop's thread."""
        with self._hashing:
            if self._fingerprint is None:
                with suppress(ModelError):
                    model, _, weights = self.llm.model_hash.partition("+")
                    parts = ["fp", model[:12], self.llm.op_set, weights]
                    self._fingerprint = re.sub(r"[^\w.]+", "-", "_".join(filter(None, parts)))
            return self._fingerprint

    # ── checking ───────────────────────────────────────────────────────────────────────────────────────────

    def adapter_of(self, model: str | None) -> str | None:
        """Returns the adapter of a model that a client has named "model:adapter", or None for the model
        itself. Raises if this server does not have it."""
        base, colon, adapter = (model or "").rpartition(":")
        if colon and base in self.settings.names and adapter in self.llm.adapters:
            return adapter
        self.check_model(model)
        return None

    def check_model(self, model: str | None) -> None:
        if model and model not in self.settings.names:  # an empty name is any model
            adapted = (f"{self.name}:{name}" for name in self.llm.adapters)
            names = [*self.settings.names, *adapted, *self.neighbours]
            listed = ", ".join(map(repr, names[:_MOST_NAMED])) + (" …" if len(names) > _MOST_NAMED else "")
            message = f"model is {model[:160]!r}; this server has {listed}"
            raise APIError(404, message, param="model", code="model_not_found")

    def check_text(self, text: str, name: str = "prompt") -> None:
        """Refuses a text that is too long for the context, without encoding it to find out."""
        self.check_texts((text,), name, self.longest_text)

    def check_texts(self, texts: Iterable[str], name: str, most: int = MOST_TEXT) -> None:
        """Refuses texts that are too long together, before anything is done with them."""
        total = sum(map(len, texts))
        if total > most:
            message = f"has {total} characters; at most {most} are expected"
            raise LengthError.about(name, message if most >= MOST_TEXT else message + self._context_length)

    def check_length(self, tokens: int, name: str = "prompt", note: str = "") -> None:
        most = self.most_prompt
        if tokens > most:
            message = f"has {tokens} tokens{note}; at most {most} are expected"
            raise LengthError.about(name, message + self._context_length)

    @property
    def _context_length(self) -> str:
        """What an error says of the context, in OpenAI's words: clients that shorten conversations look for
        them."""
        return f" (this model's maximum context length is {self.llm.config.context} tokens)"

    @property
    def most_prompt(self) -> int:
        """The most tokens that a prompt may have."""
        return min(self.settings.most_prompt or self.llm.config.context, self.llm.config.context)

    @property
    def longest_text(self) -> int:
        """The most characters that a prompt can have: its tokens, each as long as the longest one."""
        return min(self.llm.tokenizer.longest_token * self.most_prompt, MOST_TEXT)

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling,
        compiled: Compiled | None = None,
        messages: list[Message] | None = None,
    ) -> Request:
        """Returns a request that is checked as a whole, so that nothing is refused once an answer has begun.
        Takes a while where the prompt is long: not for the event loop's thread."""
        if isinstance(prompt, str):
            self.check_text(prompt)
        compiled = compiled or self.llm.compile(sampling)
        try:
            request = self.llm.prepare(prompt, sampling, compiled=compiled, messages=messages)
        except LengthError as error:
            raise LengthError(f"{error}{self._context_length}", field=error.field) from None
        self.check_length(len(request.prompt_ids))
        return request

    def end_all(self) -> None:
        """Ends everything that is computed, since the server ends."""
        self.control.end_all()
        self.threads.end_all()
