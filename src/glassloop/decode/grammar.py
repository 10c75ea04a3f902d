"""What the text must be (a JSON schema, a regular expression, one of some texts, a Lark grammar), as a mask:
which tokens may come next. llguidance does the parsing; it works on our tokens' exact bytes.

The end-of-sequence token is allowed exactly where the text so far is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from glassloop.decode.sampling import Sampling
from glassloop.decode.token_bytes import token_bytes
from glassloop.errors import SamplingError
from glassloop.text.tokenizer import Tokenizer

_DEEPEST = 200  # levels of a schema; a person's has ten
_LIMITS = LLParserLimits(initial_lexer_fuel=200_000)  # an expression that needs more is refused


class Grammar:
    """One branch's way through the grammar of its request."""

    def __init__(self, sampling: Sampling, vocab_size: int, tokenizer: Tokenizer) -> None:
        self._field = sampling.constraint or ""
        self._vocab_size = vocab_size
        self._matcher = _compiled(_readable(tokenizer), _source(sampling))
        self._length = 0  # tokens that it has taken
        if self._matcher.is_error():
            raise self._refused()
        self._matcher = self._matcher.deep_copy()

    def fork(self) -> Grammar:
        """Another way on from here."""
        made = copy(self)
        made._matcher = self._matcher.deep_copy()
        return made

    def rewind(self, length: int) -> None:
        """Back to where it had taken so many tokens, if they were more."""
        if self._length > length:
            self._matcher.rollback(self._length - length)
            self._length = length

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next."""
        allowed: NDArray[np.bool_] = np.zeros(self._vocab_size, np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._refused()
        known = np.unpackbits(bits, bitorder="little", count=min(self._vocab_size, 8 * len(bits)))
        allowed[: len(known)] = known
        return allowed

    def commit(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise self._refused()
        self._length += 1

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing can be added to it."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _refused(self) -> SamplingError:
        # The library's message may be followed by its whole state; the first part is for people.
        told = " ".join(self._matcher.get_error().split("<state>")[0].split())
        if told.startswith("NoExtension"):
            told = "no token can satisfy it"
        return SamplingError(f"{self._field} cannot be used: {told[:300]}")


@lru_cache(maxsize=16)
def _compiled(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """At its beginning, to be copied: a server looks at a request before the engine does, and requests are
    often alike."""
    return LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)


def _source(sampling: Sampling) -> str:
    """The request's grammar in llguidance's own form."""
    if sampling.json_schema is not None:
        _check_depth(sampling.json_schema)
        schema = {} if sampling.json_schema is True else sampling.json_schema
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    if sampling.regex is not None:
        return str(LLMatcher.grammar_from_regex(sampling.regex))
    if sampling.choice is not None:
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in sampling.choice)
        return str(LLMatcher.grammar_from_lark(f"start: {texts}"))
    return str(LLMatcher.grammar_from_lark(sampling.grammar or ""))


def _check_depth(schema: Any) -> None:
    """The compiler is recursive, so the depth is bounded here, without recursion."""
    level: list[Any] = [schema]
    for _ in range(_DEEPEST):
        level = [
            child
            for each in level
            for child in (
                each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
            )
        ]
        if not level:
            return
    raise SamplingError(f"json_schema is more than {_DEEPEST} levels deep; fewer are expected")


# ── our tokenizer as llguidance wants to see it ────────────────────────────────────────────────────────────

_READABLE: WeakKeyDictionary[Tokenizer, LLTokenizer] = WeakKeyDictionary()


def _readable(tokenizer: Tokenizer) -> LLTokenizer:
    """Made once for each tokenizer: it takes a fifth of a second."""
    made = _READABLE.get(tokenizer)
    if made is None:
        eos_ids = list(tokenizer.eos_ids)
        if not eos_ids:
            raise SamplingError(f"{tokenizer.name} has no end-of-sequence token, which a grammar needs")
        made = LLTokenizer(
            TokenizerWrapper(_Vocabulary(tokenizer)), n_vocab=tokenizer.vocab_size, eos_token=eos_ids
        )
        _READABLE[tokenizer] = made
    return made


class _Vocabulary:
    """The attributes that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.eos_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.tokens = token_bytes(tokenizer).by_id
        missing = [token for token, data in enumerate(self.tokens) if not data]
        self.special_token_ids = sorted({*tokenizer.special_ids, *missing})
        self._tokenizer = tokenizer

    def __call__(self, data: bytes) -> list[int]:
        return self._tokenizer.encode_bytes(data)
