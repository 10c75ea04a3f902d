"""`RequestMaker`: turns prompts, options and runs into requests, checked, before anything is computed.

It needs the tokenizer and the config of a model, not its weights. `LLM` computes what it makes; in a
cluster, replicas elsewhere do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glassloop.decode.compiled import Compiled
from glassloop.decode.defaults import check_sampling
from glassloop.decode.plugins import plugins_of
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import kind_of
from glassloop.engine.request import Listener, Request, ignore, runs_of
from glassloop.errors import GlassloopError, LengthError, SamplingError, TextError
from glassloop.model.config import ModelConfig
from glassloop.record.messages import Message, recorded
from glassloop.record.run import Maker, Run
from glassloop.text.pieces import Pieces
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.check import check_count, check_number, check_text
from glassloop.util.shown import shown

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

_MOST_PRIORITY = 1 << 31


def template_values(template: object) -> dict[str, Any]:
    """Returns the variables that a caller gives for a chat template, by their names."""
    if template is None:
        return {}
    if not isinstance(template, Mapping) or not all(isinstance(name, str) for name in template):
        raise TextError.about("template", f"is {shown(template)}; a mapping from names to values is expected")
    return dict(template)


def check_priority(priority: object) -> None:
    """Raises unless requests can be ordered by this priority."""
    check_count("priority", priority, -_MOST_PRIORITY, _MOST_PRIORITY)


class RequestMaker(Maker):
    """A model as far as requests need it: its name, config, tokenizer and default options."""

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    default_sampling: Sampling
    drafts: bool  # whether requests may use speculative decoding
    _pieces: Pieces

    @property
    def op_set(self) -> str:
        """The op set that computes the requests, with its instruction set if it has several."""
        raise NotImplementedError

    @property
    def kv_memory(self) -> int:
        """The number of bytes that keys and values may take."""
        raise NotImplementedError

    @property
    def keep(self) -> Callable[[Run], None] | None:
        """A function that is given every run at its end, or None."""
        return None

    @property
    def adapters(self) -> Mapping[str, str]:
        """The SHA-256 of each adapter that is loaded, by its name."""
        return {}

    def adapters_of(self, sampling: Sampling) -> dict[str, str]:
        """Returns the adapter that options name, with its SHA-256. Raises if it is not loaded."""
        name = sampling.adapter
        if name is None:
            return {}
        if name not in self.adapters:
            known = ", ".join(map(shown, self.adapters))
            expected = f"one of {known} is expected" if known else "no adapter is loaded"
            raise SamplingError.about("adapter", f"is {shown(name)}; {expected}")
        return {name: self.adapters[name]}

    def has_room(self, tokens: int) -> bool:
        """Returns whether a branch of this many tokens fits into the memory for keys and values."""
        raise NotImplementedError

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
        sampling = self.default_sampling if sampling is None else sampling
        check_sampling(sampling)
        check_priority(priority)
        kind_of(sampling).check(sampling)
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(check_text("prompt", prompt))
        else:
            ids = self.checked(prompt)
        self.check_length(len(ids))
        talk = None if messages is None else recorded(messages)

        def make(seed: int, number: int) -> Run:
            salt = 0 if sampling.beam_width > 1 else number  # all results of a search have the same luck
            return self.new_run(ids, sampling, seed, salt=salt, prompt=text, sample=number, messages=talk)

        runs = runs_of(sampling, make)
        built = compiled or self.build(sampling)
        return Request(
            ids, sampling, runs, listener, priority, drafts=self.drafts, keep=self.keep, built=built
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
        values = template_values(template)
        for name in values:
            if not self.has_variable(name):
                problem = f"is not a variable of the chat template of {self.name}"
                raise TextError.about(f"template.{name}", problem)
        ids = self.tokenizer.encode_chat(messages, **values)
        return self.prepare(ids, sampling, messages=messages, priority=priority)

    def has_variable(self, name: str) -> bool:
        """Returns whether the model's chat template has a variable that a request may set."""
        template = self.tokenizer.chat_template
        if template is None or name == "messages":
            return False
        return name == "continue_final" or template.has_variable(name)

    def compile(self, sampling: Sampling) -> Compiled:
        """Builds all that a request with these options needs (stop strings, bad words, a grammar), or raises
        what is wrong with them. Takes up to seconds: not for an event loop's thread."""
        return Compiled.of(sampling, self.config.vocab_size, self.tokenizer)

    def build(self, sampling: Sampling) -> Compiled | GlassloopError:
        """Compiles options; returns an error, so that one request of a batch does not end the others."""
        try:
            return self.compile(sampling)
        except GlassloopError as error:
            return error

    def prepare_fork(
        self,
        run: Run,
        at: int,
        *,
        listener: Listener = ignore,
        priority: int = 0,
        **changes: Any,
    ) -> Request:
        """Returns the request that `fork` runs with the same changes: `token`, `text` or options."""
        from glassloop.engine.fork import fork_request

        check_priority(priority)
        made = fork_request(self, run, at, **changes)
        made.listener, made.priority = listener, priority
        return made

    def prepare_rest(self, run: Run, *, timeout: float | None = None) -> Request:
        """Returns a request that continues a run which was cancelled or interrupted, with the same tokens as
        if it had not been. `timeout` is for the rest, where the run's own is longer or missing."""
        from glassloop.engine.fork import rest_request

        if timeout is not None:
            check_number("timeout", timeout, 0, 1e9)
        return rest_request(self, run, timeout)

    def piece(self, token: int) -> str:
        """Returns the text of a token by itself."""
        try:
            return self._pieces[token]
        except (TypeError, TextError):
            self.checked_id(token)
            raise

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids. One that the tokenizer does not have is written as `piece` does."""
        try:
            if max(token_ids, default=0) < self.tokenizer.vocab_size:
                return self.tokenizer.decode(token_ids)
            return "".join(map(self.piece, token_ids))
        except (TypeError, TextError):
            self.checked(token_ids, "token_ids")
            raise

    def new_run(
        self,
        ids: list[int],
        sampling: Sampling,
        seed: int,
        *,
        salt: int,
        prompt: str | None,
        sample: int,
        messages: list[Message] | None = None,
    ) -> Run:
        return Run(
            self.name,
            ids,
            seed,
            self.config.context,
            sampling,
            salt,
            self.op_set,
            prompt,
            messages=messages,
            sample=sample,
            plugins=plugins_of(sampling),
            adapters=self.adapters_of(sampling),
            llm=self,
        )

    def checked(self, ids: Sequence[int], name: str = "prompt") -> list[int]:
        """Returns the token ids as a list of plain ints; raises if one is not a token of the model."""
        if isinstance(ids, (bytes, bytearray, str)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise GlassloopError.about(name, f"is {type(ids).__name__}; a list of token ids is expected")
        # The usual case, in a tenth of the time.
        if {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < self.config.vocab_size:
            return list(ids)
        for index, token in enumerate(ids):
            if not self._has_id(token):
                self.checked_id(token, f"{name}[{index}]")
        return [int(token) for token in ids]

    def checked_id(self, token: int, name: str = "token") -> int:
        """Returns the token id as a plain int; raises if it is not a token of the model."""
        if not self._has_id(token):
            size = self.config.vocab_size
            raise GlassloopError.about(name, f"is {shown(token)}; a token id below {size} is expected")
        return int(token)

    def _has_id(self, token: object) -> bool:
        whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
        return whole and 0 <= token < self.config.vocab_size  # type: ignore[operator]

    def check_length(self, length: int, name: str = "prompt", note: str = "") -> None:
        """Raises unless `length` tokens, and one more, fit into the context and into the memory for keys and
        values. The message has the `name` of their field, and a `note` on what else is counted."""
        if not length:
            raise TextError.about(name, "is empty; at least one token is expected")
        if length >= self.config.context:
            room = f"{self.name} has room for {self.config.context}, the answer included"
            raise LengthError.about(name, f"has {length} tokens{note}; {room}")
        if not self.has_room(length + 1):
            room = f"for whose keys and values kv_memory has no room ({self.kv_memory} bytes)"
            raise LengthError.about(name, f"has {length} tokens{note}, {room}")
