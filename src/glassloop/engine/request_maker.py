"""`RequestMaker`: turns prompts and options into requests, checked, before anything is computed.

It needs the tokenizer and the config of a model, not its weights. Every language model has one, whether this
process, replicas or another server compute what it makes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from glassloop.decode.compiled import Compiled
from glassloop.decode.defaults import check_sampling
from glassloop.decode.plugins import plugins_of
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import kind_of
from glassloop.engine.request import Listener, Request, ignore, runs_of
from glassloop.errors import GlassloopError, LengthError, SamplingError, TextError
from glassloop.model.config import ModelConfig
from glassloop.record.messages import Message, recorded, text_of
from glassloop.record.run import Maker, Run
from glassloop.text.answer_form import AnswerForm
from glassloop.text.pieces import Pieces
from glassloop.text.template_forms import forms_of
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.check import check_count, check_text
from glassloop.util.shown import shown

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

_MOST_PRIORITY = 1 << 31
_LONGEST_MARK = 64  # tokens at the end of a prompt that may be the beginning of a thought


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


class ComputedModel(Maker, Protocol):
    """A model as far as requests and runs depend on where and with what it is computed."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def op_set(self) -> str:
        """The op set that computes the requests, with its instruction set if it has several."""

    @property
    def kv_memory(self) -> int:
        """The number of bytes that keys and values may take."""

    @property
    def adapters(self) -> Mapping[str, str]:
        """The SHA-256 of each adapter that is loaded, by its name."""

    @property
    def keep(self) -> Callable[[Run], None] | None:
        """A function that is given every run at its end, or None."""

    def has_room(self, tokens: int) -> bool:
        """Returns whether a branch of this many tokens fits into the memory for keys and values."""


def adapters_of(llm: ComputedModel, sampling: Sampling) -> dict[str, str]:
    """Returns the adapter that options name, with its SHA-256. Raises if it is not loaded."""
    name = sampling.adapter
    if name is None:
        return {}
    loaded = llm.adapters
    if name not in loaded:
        names = ", ".join(map(shown, loaded))
        expected = f"one of {names} is expected" if names else "no adapter is loaded"
        raise SamplingError.about("adapter", f"is {shown(name)}; {expected}")
    return {name: loaded[name]}


class RequestMaker:
    """Makes the requests of one language model, `llm`, which the runs refer to. The model holds its maker, so
    the maker refers to it weakly: nothing but its users keeps a model in memory."""

    def __init__(
        self,
        llm: ComputedModel,
        name: str,
        config: ModelConfig,
        tokenizer: Tokenizer,
        *,
        default_sampling: Sampling | None = None,
        drafts: bool = True,
        pieces: Pieces | None = None,
    ) -> None:
        self._llm = weakref.ref(llm)
        self.name = name  # of the model, in records and messages
        self.config = config
        self.tokenizer = tokenizer
        self.default_sampling = default_sampling or Sampling()
        self.drafts = drafts  # whether requests may use speculative decoding
        self._pieces = Pieces(tokenizer) if pieces is None else pieces

    @property
    def llm(self) -> ComputedModel:
        llm = self._llm()
        if llm is None:
            raise GlassloopError(f"the model {self.name} is not in memory any more")
        return llm

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
        conversation = None if messages is None else recorded(messages)

        def make(seed: int, number: int) -> Run:
            salt = 0 if sampling.beam_width > 1 else number  # all results of a search have the same luck
            return self.new_run(
                ids, sampling, seed, salt=salt, prompt=text, sample=number, messages=conversation
            )

        runs = runs_of(sampling, make)
        built = compiled or self.build(sampling)
        return Request(
            ids, sampling, runs, listener, priority, drafts=self.drafts, keep=self.llm.keep, built=built
        )

    def request(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        runs: list[Run],
        forced: list[int],
        built: Compiled | GlassloopError,
    ) -> Request:
        """Returns a request whose runs exist already, and continue with the tokens `forced`."""
        return Request(
            prompt_ids, sampling, runs, forced=forced, drafts=self.drafts, keep=self.llm.keep, built=built
        )

    def encode_chat(self, messages: Messages, template: Mapping[str, Any] | None = None) -> list[int]:
        """Returns the prompt of a conversation, as the model's chat template with these variables writes it.
        Raises for a variable that the template does not have."""
        values = template_values(template)
        for name in values:
            if not self.has_variable(name):
                problem = f"is not a variable of the chat template of {self.name}"
                raise TextError.about(f"template.{name}", problem)
        return self.tokenizer.encode_chat(messages, **values)

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
        """Returns a run that has not begun. The answer to `messages` has the marks of the template."""
        return Run(
            self.name,
            ids,
            seed,
            self.config.context,
            sampling,
            salt,
            self.llm.op_set,
            prompt,
            messages=messages,
            sample=sample,
            plugins=plugins_of(sampling),
            adapters=adapters_of(self.llm, sampling),
            form=None if messages is None else self.answer_form(ids, messages),
            llm=self.llm,
        )

    def answer_form(self, ids: Sequence[int], messages: Sequence[Message] = ()) -> AnswerForm | None:
        """Returns the marks of the answer to a prompt, None if the model's template has none. A last message
        by the assistant is one that is continued."""
        forms = forms_of(self.tokenizer)
        if forms is None or forms.answer is None:
            return None
        last = messages[-1] if messages else {}
        continued = text_of(last) if last.get("role") == "assistant" else ""
        return forms.answer.opened_by(self.decode(ids[-_LONGEST_MARK:]), continued)

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
        if not self.llm.has_room(length + 1):
            room = f"for whose keys and values kv_memory has no room ({self.llm.kv_memory} bytes)"
            raise LengthError.about(name, f"has {length} tokens{note}, {room}")
