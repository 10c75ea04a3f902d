"""Constraints on the text (a JSON schema, a regular expression, a choice of texts, a grammar) as a mask of
the tokens that may come next. llguidance does the parsing, on the exact bytes of the tokens.

The end-of-sequence token is allowed exactly where the text so far is complete.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from time import monotonic, thread_time
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from glassloop.decode.gbnf import is_gbnf, lark_of
from glassloop.decode.sampling import Sampling
from glassloop.decode.token_bytes import token_bytes
from glassloop.decode.trial import TOO_MUCH, Trials
from glassloop.decode.trial_worker import TOO_SLOW, TrialVocabulary, compile_grammar, make_tokenizer
from glassloop.errors import SamplingError
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.shown import printable

_LONGEST = 1 << 20  # characters of a grammar
# The engine's time that a request's grammar may use, in seconds: in total at first, then added per mask and
# token.
_AT_ONCE, _MASK, _TOKEN = 0.3, 0.01, 0.002


class Grammar:
    """The state of one branch in the grammar of its request."""

    def __init__(self, sampling: Sampling, vocab_size: int, tokenizer: Tokenizer) -> None:
        self._field = sampling.constraint or ""
        self._vocab_size = vocab_size
        self._length = 0  # tokens committed
        self._budget = _Budget()
        self._matcher = _compiler(tokenizer).compile(self._field, _source(sampling))

    def fork(self) -> Grammar:
        """Returns an independent state from here on. Its time counts for the same request."""
        twin = copy(self)
        twin._matcher = self._matcher.deep_copy()
        return twin

    def rewind(self, length: int) -> None:
        """Goes back to the state after `length` committed tokens, if there were more."""
        if self._length > length:
            self._matcher.rollback(self._length - length)
            self._length = length

    def mask(self) -> NDArray[np.bool_]:
        """Returns which tokens may come next."""
        allowed: NDArray[np.bool_] = np.zeros(self._vocab_size, np.bool_)
        began = thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._budget.spend(self._field, thread_time() - began, _MASK)
        if self._matcher.is_error():
            raise self._refused()
        flags = np.unpackbits(bits, bitorder="little", count=min(self._vocab_size, 8 * len(bits)))
        allowed[: len(flags)] = flags
        return allowed

    def commit(self, token: int) -> None:
        began = thread_time()
        taken = self._matcher.consume_token(token)
        self._budget.spend(self._field, thread_time() - began, _TOKEN)
        if not taken:
            raise self._refused()
        self._length += 1

    @property
    def accepting(self) -> bool:
        """Whether the text may end here, though something could be added to it."""
        return bool(self._matcher.is_accepting()) and not self._matcher.is_error()

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing can be added to it."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _refused(self) -> SamplingError:
        return _refused(self._field, self._matcher.get_error())


class _Budget:
    """The processor time that all branches of a request have for their grammar. An ambiguous grammar takes
    longer with each token, and all requests in the batch wait for it. The longest time is not counted: a
    virtual machine may count time as the processor's in which it stood still.

    It is time because llguidance does not report how many steps it took; only the steps of one token are
    limited, by `trial_worker.LIMITS`. So whether a request ends with this error may depend on the machine;
    its tokens never do."""

    def __init__(self) -> None:
        self._left = _AT_ONCE
        self._longest = 0.0  # seconds

    def spend(self, field: str, seconds: float, earned: float) -> None:
        self._left = min(_AT_ONCE, self._left + earned) - min(seconds, self._longest)
        self._longest = max(self._longest, seconds)
        if self._left < 0:
            raise _refused(field, TOO_SLOW)


def _refused(field: str, message: str) -> SamplingError:
    # The library's message may be followed by its whole state; only the first part is meant for users.
    message = " ".join(message.split("<state>")[0].split("<non-verbose/>")[0].split())
    if message.startswith("NoExtension"):
        message = "no token can satisfy it"
    return SamplingError.about(field, f"cannot be used: {printable(message, 300)}")


def _source(sampling: Sampling) -> str:
    """Returns the request's grammar in llguidance's format."""
    if sampling.json_schema is not None:
        schema = {} if sampling.json_schema is True else sampling.json_schema
        return _bounded("json_schema", json.dumps(schema), LLMatcher.grammar_from_json_schema)
    if sampling.regex is not None:
        return _bounded("regex", sampling.regex, LLMatcher.grammar_from_regex)
    if sampling.choice is not None:
        # One terminal: a rule with thousands of terminals would be followed one by one.
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in sampling.choice)
        return _bounded("choice", f"start: CHOICE\nCHOICE: {texts}", LLMatcher.grammar_from_lark)
    grammar = sampling.grammar or ""
    if is_gbnf(grammar):
        grammar = lark_of("grammar", grammar)
    return _bounded("grammar", grammar, LLMatcher.grammar_from_lark)


def _bounded(field: str, text: str, convert: Callable[[str], str]) -> str:
    if len(text) > _LONGEST:
        raise SamplingError.about(field, f"has {len(text)} characters; at most {_LONGEST} are expected")
    try:
        return str(convert(text))
    except ValueError as error:
        raise _refused(field, str(error)) from None


# ── compiling ──────────────────────────────────────────────────────────────────────────────────────────────


class _Compiled(NamedTuple):
    matcher: LLMatcher | None  # in the state at the start of a text, to be copied
    error: str
    size: int  # bytes
    expires: float = math.inf  # when to try it again, by `time.monotonic`


class _Compiler:
    """Compiles grammars for one tokenizer and caches the latest, since requests often repeat them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = token_bytes(tokenizer).by_id
        missing = [token for token, data in enumerate(tokens) if not data]
        vocabulary = TrialVocabulary(
            tokens, list(tokenizer.eos_ids), tokenizer.bos_id, sorted({*tokenizer.special_ids, *missing})
        )
        self._trials = Trials(vocabulary)
        starting = threading.Thread(target=self._trials.start, name="glassloop-grammar")
        starting.start()  # the child makes its tokenizer while this process makes its own
        self._tokenizer = make_tokenizer(vocabulary, tokenizer.encode_bytes)
        starting.join()
        self._cache: OrderedDict[str, _Compiled] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def compile(self, field: str, source: str) -> LLMatcher:
        """Returns a new matcher. Raises a `SamplingError` if the grammar cannot be used."""
        with self._lock:
            compiled = self._cache.get(source)
            if compiled is not None and compiled.expires < monotonic():
                self._forget(source)
                compiled = None
            if compiled is not None:
                self._cache.move_to_end(source)
        if compiled is None:
            try:
                compiled = self._try(source)
            except (OSError, RuntimeError) as error:  # no resources for another process or thread
                raise _refused(field, f"there is nothing to compile it with ({error})") from None
            self._remember(source, compiled)
        if compiled.matcher is None:
            raise _refused(field, compiled.error)
        return compiled.matcher.deep_copy()

    def _try(self, source: str) -> _Compiled:
        verdict = self._trials.run(source)
        again = monotonic() + _REFUSED
        if verdict is None:
            return _Compiled(None, TOO_MUCH, 2 * len(source), again)
        size = verdict.memory + 2 * len(source)
        if verdict.error:
            return _Compiled(None, verdict.error, size, again)
        matcher = compile_grammar(self._tokenizer, source)
        if matcher.is_error():
            return _Compiled(None, matcher.get_error(), size, again)
        return _Compiled(matcher, "", size)

    def _remember(self, source: str, compiled: _Compiled) -> None:
        with self._lock:
            if source in self._cache or compiled.size > _MOST_REMEMBERED:
                return
            self._cache[source] = compiled
            self._size += compiled.size
            while self._size > _MOST_REMEMBERED or len(self._cache) > _MANY:
                self._forget(next(iter(self._cache)))

    def _forget(self, source: str) -> None:
        self._size -= self._cache.pop(source).size


_MANY = 8  # cached grammars; each takes up to 30 MB more while it is used
_REFUSED = 60.0  # seconds until a refused one is tried again: the machine may have lacked time or memory
_MOST_REMEMBERED = 64 << 20  # bytes of all of them
_COMPILERS: WeakKeyDictionary[Tokenizer, _Compiler] = WeakKeyDictionary()
_MAKING = threading.Lock()


def _compiler(tokenizer: Tokenizer) -> _Compiler:
    """Returns the compiler of a tokenizer, which is made once."""
    if not tokenizer.eos_ids:
        raise SamplingError(f"{tokenizer.name} has no end-of-sequence token, which a grammar needs")
    with _MAKING:
        compiler = _COMPILERS.get(tokenizer)
        if compiler is None:
            compiler = _COMPILERS[tokenizer] = _Compiler(tokenizer)
        return compiler
