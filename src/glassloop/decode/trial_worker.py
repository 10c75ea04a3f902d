"""Compiles grammars, and tries them in a child process that `trial.py` starts.

Both processes compile a grammar in the same way, by `compile_grammar`. The child also uses it for a few
tokens, under limits on time and memory. This file is the child's script (see `util/child.py`), which imports
nothing else of this package.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from time import process_time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

if TYPE_CHECKING:
    from glassloop.util.child_main import Parent

_SECONDS = 0.5  # of the child's processor time for one grammar
_MEMORY = 256 << 20  # bytes that a compiled grammar may take
_STACK = 256 << 20  # bytes, reserved and not used: a level of recursion takes up to 12 kB
_WALK = 8  # tokens that the child commits
_SLOWEST = 0.2  # seconds that one of them may take
TOO_SLOW = "it takes too long to follow; a simpler one is expected"

LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_items_in_row=1000,
    max_lexer_states=20_000,
    verbose_errors=False,
)

T = TypeVar("T")
_STACK_SIZE = threading.Lock()  # the stack size is a setting of the whole process


class TrialVocabulary(NamedTuple):
    """What llguidance needs to know of a tokenizer."""

    tokens: list[bytes]
    eos_ids: list[int]
    bos_id: int | None
    special_ids: list[int]


class _Words:
    """A tokenizer with the attributes that llguidance reads."""

    def __init__(self, vocabulary: TrialVocabulary, encode: Callable[[bytes], list[int]]) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = vocabulary.bos_id
        self.special_token_ids = vocabulary.special_ids
        self._encode = encode

    def __call__(self, data: bytes) -> list[int]:
        return self._encode(data)


def make_tokenizer(vocabulary: TrialVocabulary, encode: Callable[[bytes], list[int]]) -> LLTokenizer:
    """Returns a tokenizer for llguidance. Takes a fifth of a second."""
    words = TokenizerWrapper(_Words(vocabulary, encode))
    return LLTokenizer(words, n_vocab=len(vocabulary.tokens), eos_token=vocabulary.eos_ids)


def compile_grammar(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Returns a matcher at the start of a text, or one in the error state. Only compiling is recursive; using
    the matcher needs little stack."""
    return _with_stack(lambda: LLMatcher(tokenizer, source, log_level=0, limits=LIMITS))


def _with_stack(job: Callable[[], T]) -> T:
    """Runs a job on a thread with a large stack."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(job())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="glassloop-grammar")
    with _STACK_SIZE:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# ── in the child ───────────────────────────────────────────────────────────────────────────────────────────


class TrialVerdict(NamedTuple):
    error: str  # why the grammar cannot be used, or ""
    memory: int  # bytes that the compiled grammar takes


def serve(parent: Parent) -> None:
    """Tries grammars. The first message is the vocabulary, each later one is a grammar, all as JSON."""
    tokens, *ids = json.loads(parent.receive())
    # JSON has no bytes, so each byte is sent as a character.
    vocabulary = TrialVocabulary([data.encode("latin-1") for data in tokens], *ids)
    tokenizer = make_tokenizer(vocabulary, lambda data: [])
    _limit_memory()
    parent.send(b"ready")
    while True:
        source = json.loads(parent.receive())
        _set_clock(_SECONDS)
        before = _memory()
        matcher = compile_grammar(tokenizer, source)
        error = str(matcher.get_error()) if matcher.is_error() else ""
        if not error and _slowest(matcher) > _SLOWEST:
            error = TOO_SLOW
        _set_clock(0)
        verdict = TrialVerdict(error[:2000], max(0, _memory() - before))
        parent.send(json.dumps(verdict).encode())


def _slowest(matcher: LLMatcher) -> float:
    """Commits a few tokens, in turn the last and the first that is allowed, and returns the seconds that the
    slowest took."""
    slowest = 0.0
    for step in range(_WALK):
        began = process_time()
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_stopped() or not allowed:
            break
        last = allowed.bit_length() - 1
        first = (allowed & -allowed).bit_length() - 1
        matcher.consume_token(first if step % 2 else last)
        slowest = max(slowest, process_time() - began)
    return slowest


def _memory() -> int:
    """Returns the resident memory of this process in bytes, or 0 if it is not known."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123  (pathlib is one import more)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _limit_memory() -> None:
    try:
        import resource

        with open("/proc/self/statm") as file:  # noqa: PTH123
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _STACK + _MEMORY,) * 2)
    except (ImportError, OSError, ValueError):  # not available here; the time limit bounds memory too
        return


def _set_clock(seconds: float) -> None:
    """Ends the process after this many seconds of processor time; 0 cancels the limit."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
