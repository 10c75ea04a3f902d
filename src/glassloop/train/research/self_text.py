"""Text that a model writes itself: conversations for the training of a drafter or of another helper model.

The beginning of a chat prompt makes an instruction-tuned model write a question; the rest of the template
then makes it answer. Given questions (seeds) are answered as well. All conversations of a batch advance by
one token a step, prompt tokens included, so that a step is one forward pass with one row for each of them and
one draw on the device, with no work per conversation but to append its token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, Span, pages_for
from glassloop.text.tokenizer import Tokenizer
from glassloop.train.config import TrainError
from glassloop.train.token_files import DataError, TokenFiles, TokenWriter
from glassloop.util.fields import json_object
from glassloop.util.files import read_at_most

ANSWER_TEMPERATURES = (0.0, 0.0, 0.7, 0.7, 1.0)  # one of them for each answer
QUESTION_TEMPERATURES = (0.7, 0.85, 1.0)
_QUESTION_FIELDS = ("question", "prompt", "instruction")
_GRAM = 16  # tokens whose third occurrence ends an answer: small models like to repeat themselves
_CHECKED_EVERY = 64  # tokens
_MOST_SEEDS = 64_000_000  # bytes of a file of seeds


class WrittenConversation(NamedTuple):
    """A finished conversation."""

    tokens: list[int]
    answer: int  # where the answer begins


@dataclass
class ChatFrame:
    """The tokens of a chat prompt around the question."""

    before: list[int]
    after: list[int]  # begins with the token that ends a message

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatFrame:
        """Finds the frame: what the prompts of two different questions have in common."""
        one, other = (
            tokenizer.encode_chat([{"role": "user", "content": text}], add_generation_prompt=True)
            for text in ("A", "B")
        )
        begin = next(at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y)
        end = next(at for at, (x, y) in enumerate(zip(one[::-1], other[::-1], strict=False)) if x != y)
        return cls(one[:begin], one[len(one) - end :])


def read_questions(path: Path) -> list[str]:
    """Returns the questions of a JSONL file: of each line the field question, prompt or instruction, the last
    with the input of its first instance, if it has one (the layout of self-instruct)."""
    questions = []
    for number, line in enumerate(read_at_most(path, _MOST_SEEDS, DataError).decode().splitlines(), 1):
        entry = json_object(line, f"{path}, line {number}", DataError)
        name = next((name for name in _QUESTION_FIELDS if name in entry), None)
        if name is None or not isinstance(entry[name], str):
            raise DataError(f"{path}, line {number}: has none of the fields {', '.join(_QUESTION_FIELDS)}")
        instances = entry.get("instances")
        input_text = instances[0].get("input") if isinstance(instances, list) and instances else None
        questions.append(
            f"{entry[name]}\n{input_text}" if isinstance(input_text, str) and input_text else entry[name]
        )
    return questions


@dataclass
class _Slot:
    """A conversation that is being written, and the pages that it has."""

    pages: Any  # [groups, pages]
    tokens: list[int] = field(default_factory=list)
    at: int = 0  # tokens that are computed
    answer: int = 0  # where the answer begins; 0: the question is being written
    temperature: float = 1.0
    question: int = 0  # where the question begins


class TextWriter:
    """Writes conversations with a model, `slots` of them at a time, each of at most `length` tokens."""

    def __init__(
        self,
        transformer: Transformer,
        frame: ChatFrame,
        ends: Sequence[int],
        *,
        seeds: Sequence[Sequence[int]] = (),
        seed_share: float = 0.25,
        slots: int = 256,
        length: int = 768,
        temperatures: Sequence[float] = ANSWER_TEMPERATURES,
        seed: int = 0,
    ) -> None:
        """`ends` are the tokens that end a message, `seeds` the token ids of questions."""
        self._transformer = transformer
        self._frame = frame
        self._ends = frozenset(ends)
        most = length - len(frame.before) - len(frame.after)
        if most < 4:
            raise TrainError.about("length", f"is {length}; the chat prompt alone has {length - most} tokens")
        self._seeds = [list(each) for each in seeds if 0 < len(each) <= most // 2]
        self._seed_share = seed_share if self._seeds else 0.0
        self._length = length
        self._temperatures = temperatures
        self._numbers = np.random.default_rng(seed)
        groups, each = len(transformer.cache_specs), pages_for(length)
        memory = slots * each * transformer.page_bytes
        self._cache = transformer.ops.cache(transformer.cache_specs, memory)
        tables = np.arange(slots * groups * each, dtype=np.int32).reshape(slots, groups, each)
        self._slots = [self._begin(_Slot(table)) for table in tables]
        self._generator: torch.Generator | None = None
        self._seed = seed

    def write(self) -> Iterator[WrittenConversation]:
        """Yields conversations as they are finished, without an end."""
        while True:
            yield from self.step()

    def step(self) -> list[WrittenConversation]:
        """Computes one token of every conversation; returns those that it finished."""
        slots = self._slots
        rows = range(len(slots))
        batch = Batch(
            [slot.tokens[slot.at] for slot in slots],
            [slot.at for slot in slots],
            [Span(row, row + 1, slot.at, slot.pages) for row, slot in enumerate(slots)],
            list(rows),
        )
        results = self._transformer.forward(batch, self._cache)
        logits = results.values if hasattr(results, "values") else torch.from_numpy(results)
        drawn = self._draw(logits, [slot.temperature for slot in slots]).tolist()
        finished = []
        for slot, token in zip(slots, drawn, strict=True):
            slot.at += 1
            if slot.at == len(slot.tokens):
                conversation = self._append(slot, token)
                if conversation is not None:
                    finished.append(conversation)
        return finished

    def _draw(self, logits: torch.Tensor, temperatures: list[float]) -> torch.Tensor:
        """Draws a token for each row by the Gumbel trick; the highest one where the temperature is 0."""
        if self._generator is None:
            self._generator = torch.Generator(logits.device).manual_seed(self._seed)
        with torch.inference_mode():
            noise = torch.empty_like(logits).exponential_(generator=self._generator).clamp_min_(1e-30).log_()
            factors = torch.tensor(temperatures, device=logits.device)[:, None]
            return (logits - noise * factors).argmax(dim=-1)

    def _append(self, slot: _Slot, token: int) -> WrittenConversation | None:
        """Adds a drawn token to a conversation; returns the conversation if that ended it."""
        slot.tokens.append(token)
        ended = token in self._ends
        if slot.answer:
            written = len(slot.tokens) - slot.answer
            if not ended and len(slot.tokens) < self._length and written % _CHECKED_EVERY:
                return None
            end = slot.answer + first_repetition(slot.tokens[slot.answer :])
            if not ended and end == len(slot.tokens) < self._length:
                return None
            conversation = WrittenConversation(slot.tokens[:end], slot.answer)
            self._begin(slot)
            return conversation
        written = len(slot.tokens) - slot.question
        if ended and written > 2:
            slot.tokens.pop()
            self._ask(slot)
        elif ended or written > self._length // 4:  # too short or too long a question: another one
            self._begin(slot)
        return None

    def _begin(self, slot: _Slot) -> _Slot:
        """Begins a new conversation, with a question of its own or a given one."""
        slot.tokens, slot.at, slot.answer = list(self._frame.before), 0, 0
        slot.temperature = self._one_of(QUESTION_TEMPERATURES)
        slot.question = len(slot.tokens)
        if self._numbers.random() < self._seed_share:
            slot.tokens += self._seeds[int(self._numbers.integers(len(self._seeds)))]
            self._ask(slot)
        return slot

    def _ask(self, slot: _Slot) -> None:
        """Ends the question and begins the answer."""
        slot.tokens += self._frame.after
        slot.answer = len(slot.tokens)
        slot.temperature = self._one_of(self._temperatures)

    def _one_of(self, choices: Sequence[float]) -> float:
        return choices[int(self._numbers.integers(len(choices)))]


def first_repetition(tokens: Sequence[int] | NDArray[Any]) -> int:
    """Returns where a text begins to go round in circles: the place at which a sequence of 16 tokens begins
    for the third time. The length of the text if it does not."""
    ids = np.asarray(tokens, np.uint64)
    if len(ids) < _GRAM + 2:
        return len(ids)
    factors = np.uint64(0x9E3779B97F4A7C15) ** np.arange(_GRAM, dtype=np.uint64)
    hashes = (np.lib.stride_tricks.sliding_window_view(ids, _GRAM) * factors).sum(axis=1, dtype=np.uint64)
    places = np.argsort(hashes, kind="stable")
    third = places[2:][hashes[places[2:]] == hashes[places[:-2]]]
    return int(third.min(initial=len(ids)))


def write_text(
    writer: TextWriter,
    folder: Path,
    vocab_size: int,
    *,
    tokens: int,
    seconds: float = float("inf"),
    report: Any = None,
) -> TokenFiles:
    """Writes conversations to token files until there are `tokens` tokens or the time is up. The loss of a
    training on them counts the answers."""
    files = TokenWriter(folder, vocab_size)
    began = said = perf_counter()
    while files.tokens < tokens:
        for conversation in writer.step():
            files.add(
                conversation.tokens,
                [False] * conversation.answer + [True] * (len(conversation.tokens) - conversation.answer),
            )
        now = perf_counter()
        if now - said > 5 and report is not None:
            said = now
            report(f"{files.tokens:,} tokens, {files.tokens / (now - began):,.0f} a second")
        if now - began > seconds and files.tokens:
            break
    return files.finish(sources=[{"path": "written by the model"}])


def seed_ids(tokenizer: Tokenizer, files: Sequence[Path]) -> list[list[int]]:
    """Returns the token ids of the questions of some JSONL files."""
    return [
        tokenizer.encode(question, add_special=False, parse_special=False)
        for path in files
        for question in read_questions(path)
    ]


def merge(folders: Sequence[Path], out: Path, vocab_size: int) -> TokenFiles:
    """Copies the documents of several folders of token files into one."""
    writer = TokenWriter(out, vocab_size)
    sources = []
    for folder in folders:
        files = TokenFiles(folder)
        sources += files.manifest["sources"]
        start = 0
        for end in files.ends.tolist():
            ids, learned = files.read(start, end)
            writer.add(ids, learned.tolist())
            start = end
    return writer.finish(sources=sources)
