"""Texts and token sequences that must not occur: finds the tokens that would complete one.

Texts are matched on bytes, so they are found however they are split into tokens, including the last tokens of
the prompt. `BadWords` is built once per request and shared by its branches; a `BadWordWatch` is the state of
one branch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from glassloop.decode.token_bytes import TokenBytes, token_bytes
from glassloop.errors import SamplingError
from glassloop.ops.rows import Int32
from glassloop.text.automaton import Automaton
from glassloop.text.tokenizer import Tokenizer

Range = tuple[int, int]  # start and end, the end exclusive


class BadWords:
    """The bad words of one request as two automata: one of the texts over bytes, one of the sequences over
    token ids.

    A token that contains a whole text is banned at every step. Any other token completes a text that has
    already begun: the state of the automaton and its fallbacks are all such beginnings, and the tokens that
    complete each are looked up when the automaton is built.
    """

    def __init__(self, words: Sequence[str | tuple[int, ...]], tokenizer: Tokenizer | None) -> None:
        texts = sorted({word.encode() for word in words if isinstance(word, str)})
        if texts and tokenizer is None:
            raise SamplingError.about("bad_words", "has texts; without a tokenizer token ids are expected")
        self._tokens = None if tokenizer is None or not texts else token_bytes(tokenizer)
        sequences = sorted({word for word in words if not isinstance(word, str)})
        always = {sequence[0] for sequence in sequences if len(sequence) == 1}
        self._texts, self._sequences = Automaton(texts), Automaton(sequences)
        self._by_text: dict[int, set[Range]] = {}  # state → ranges of tokens in order of their bytes
        self._by_sequence: dict[int, list[int]] = {}  # state → token ids
        if self._tokens is not None:
            always |= self._tokens.holding(texts)
            self._look_up(texts, self._tokens)
        for sequence in sequences:
            if len(sequence) > 1:
                self._by_sequence.setdefault(self._sequences.follow(0, sequence[:-1]), []).append(
                    sequence[-1]
                )
        self._always = np.array(sorted(always), np.int32)
        self._text_hops = _hops(self._texts, self._by_text)
        self._sequence_hops = _hops(self._sequences, self._by_sequence)
        self._begun: tuple[Sequence[int], tuple[int, int]] = [], (0, 0)
        self._known: dict[tuple[int, int], Int32] = {}
        self._room = _MOST_KNOWN

    def _look_up(self, texts: Iterable[bytes], tokens: TokenBytes) -> None:
        """Finds, for each beginning of each text, the tokens that begin with the rest of the text."""
        longest = int((tokens.ends - tokens.starts).max())
        ranges: dict[bytes, Range] = {}
        for text in texts:
            state = 0
            for place, byte in enumerate(text[:-1], 1):
                state = self._texts.step(state, byte)
                if len(text) - place > longest:
                    continue
                rest = text[place:]
                token_range = ranges.get(rest)
                if token_range is None:
                    token_range = ranges[rest] = tokens.range_of(rest)
                if token_range[0] < token_range[1]:
                    self._by_text.setdefault(state, set()).add(token_range)

    def watch(self, prompt: Sequence[int]) -> BadWordWatch:
        """Returns the state of a branch that begins with these tokens."""
        if prompt != self._begun[0]:  # all samples of a request have the same prompt
            states = (0, 0)
            for token in self._tail(prompt):
                states = self.after(states, token)
            self._begun = list(prompt), states
        return BadWordWatch(self, self._begun[1])

    def _tail(self, prompt: Sequence[int]) -> list[int]:
        """Returns as many of the last tokens as could be the beginning of a bad word."""
        text, sequence = max(self._texts.depth), max(self._sequences.depth)
        tail: list[int] = []
        size = 0
        for token in reversed(prompt):
            if size >= text and len(tail) >= sequence:
                break
            tail.append(token)
            size += len(self._bytes_of(token))
        return tail[::-1]

    def after(self, states: tuple[int, int], token: int) -> tuple[int, int]:
        """Returns the states of both automata after one more token."""
        text, sequence = states
        return self._texts.follow(text, self._bytes_of(token)), self._sequences.step(sequence, token)

    def _bytes_of(self, token: int) -> bytes:
        if self._tokens is None or token >= len(self._tokens.by_id):  # a model may have more ids than tokens
            return b""
        return self._tokens.by_id[token]

    def banned(self, states: tuple[int, int]) -> Int32:
        """Returns the tokens that are banned in these states."""
        hops = self._text_hops[states[0]], self._sequence_hops[states[1]]
        if hops == (0, 0):
            return self._always
        more = self._known.get(hops)
        if more is None:
            more = self._completing(*hops)
            self._room -= len(more)
            if self._room < 0:
                self._known, self._room = {}, _MOST_KNOWN
            self._known[hops] = more
        return np.concatenate([self._always, more])

    def _completing(self, text: int, sequence: int) -> Int32:
        """Returns the tokens that are banned in these states, without those that always are."""
        ranges: set[Range] = set()
        while text:
            ranges |= self._by_text[text]
            text = self._text_hops[self._texts.fallback[text]]
        ids: list[int] = []
        while sequence:
            ids += self._by_sequence[sequence]
            sequence = self._sequence_hops[self._sequences.fallback[sequence]]
        parts = [np.array(ids, np.int32)]
        if self._tokens is not None:
            parts += [self._tokens.sorted_ids[low:high] for low, high in _merged(ranges)]
        token_ids = np.concatenate(parts)
        return token_ids[~np.isin(token_ids, self._always, kind="table")]


class BadWordWatch:
    """The state of one branch, which follows its tokens forward and back."""

    def __init__(self, words: BadWords, states: tuple[int, int]) -> None:
        self._words = words
        self._states = array("i", states)  # two per token; the first two are those at the end of the prompt

    def banned(self) -> Int32:
        """Returns the tokens that are banned next."""
        return self._words.banned(self._now)

    def commit(self, token: int) -> None:
        self._states.extend(self._words.after(self._now, token))

    def fork(self) -> BadWordWatch:
        watch = BadWordWatch(self._words, (0, 0))
        watch._states = self._states[:]
        return watch

    def rewind(self, length: int) -> None:
        """Goes back to the state in which `length` tokens had been committed."""
        del self._states[2 * (length + 1) :]

    @property
    def _now(self) -> tuple[int, int]:
        return self._states[-2], self._states[-1]


_MOST_KNOWN = 1 << 21  # ids of all cached results: 8 MB


def _hops(automaton: Automaton, outputs: dict[int, set[Range]] | dict[int, list[int]]) -> array[int]:
    """Returns for each state the nearest of itself and its fallbacks that bans tokens, or 0. There may be
    thousands of fallbacks, of which few ban any."""
    hops = array("i", bytes(4 * len(automaton.depth)))
    for state in sorted(range(1, len(hops)), key=automaton.depth.__getitem__):
        hops[state] = state if state in outputs else hops[automaton.fallback[state]]
    return hops


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Returns the union of the ranges, as ranges that do not overlap."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
