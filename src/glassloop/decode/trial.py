"""Compiles grammars, after trying each in a child process.

llguidance is recursive (a chain of rules or references overflows the stack, which ends the process) and has
no time limit (`{"type": "integer", "multipleOf": 999983}` takes 20 s). So a child process first compiles a
grammar and uses it for a few tokens, under limits on time and memory; if the child survives, the grammar is
compiled here, in the same way. This file is also the child's program, which imports nothing else of this
package.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

if TYPE_CHECKING:
    from glassloop.util.child import Child

SECONDS = 0.5  # of the child's processor time for one grammar
_START = 120.0  # seconds that a child may take to start, on a machine that is busy
_WAIT = 20.0  # seconds until a child that does not answer is killed
_TRIES = 2  # a child may also end, be slow or not answer in time because of what the machine does
_MEMORY = 256 << 20  # bytes that a compiled grammar may take
_STACK = 256 << 20  # bytes, reserved and not used: a level of recursion takes up to 12 kB
_LONGEST_ANSWER = 1 << 16  # bytes
_WALK = 8  # tokens that the child commits
_SLOWEST = 0.2  # seconds that one of them may take
TOO_SLOW = "it takes too long to follow; a simpler one is expected"
TOO_MUCH = "it takes too much time or memory to compile"

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
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(job())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="glassloop-grammar")
    with _STACK_SIZE:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


# ── in the parent ──────────────────────────────────────────────────────────────────────────────────────────


class TrialVerdict(NamedTuple):
    error: str  # why the grammar cannot be used, or ""
    memory: int  # bytes that the compiled grammar takes


class Trials:
    """A child process that tries grammars, one at a time. It is started when needed, restarted after a
    grammar has ended it, and ends with its parent."""

    def __init__(self, vocabulary: TrialVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self.child: Child | None = None

    def start(self) -> None:
        """Starts the child if there is none."""
        with self._lock, suppress(OSError):
            self._running()

    def run(self, source: str) -> TrialVerdict | None:
        """Tries a grammar in the child. Returns None if it has ended each child that tried it. Raises
        `OSError` if no child can be started."""
        verdict = None
        with self._lock:
            for _ in range(_TRIES):
                verdict = self._try(source)
                if verdict is not None and verdict.error != TOO_SLOW:
                    break
        return verdict

    def _try(self, source: str) -> TrialVerdict | None:
        from glassloop.util.child import Patience

        child, patience = self._running(), Patience(_WAIT)
        try:
            child.send(json.dumps(source).encode(), patience)
            answer = child.receive(patience, _LONGEST_ANSWER)
        except TimeoutError:
            answer = None
        if answer is None:
            child.end()
            self.child = None
            return None
        return TrialVerdict(*json.loads(answer))

    def _running(self) -> Child:
        """Returns the child, which is ready to try a grammar."""
        from glassloop.util.child import Child, Patience

        if self.child is None or not self.child.alive():
            patience = Patience(_START)
            path = os.pathsep.join(str(Path(each).absolute()) for each in filter(None, sys.path))
            child = Child([sys.executable, "-P", __file__], {**os.environ, "PYTHONPATH": path})
            # JSON has no bytes, so each byte is sent as a character.
            tokens = [data.decode("latin-1") for data in self._vocabulary.tokens]
            child.send(json.dumps([tokens, *self._vocabulary[1:]]).encode(), patience)
            if child.receive(patience, _LONGEST_ANSWER) is None:
                raise OSError("the process that tries grammars has ended at its start")
            self.child = child
        return self.child


# ── in the child ───────────────────────────────────────────────────────────────────────────────────────────


def _receive() -> Any:
    size = int.from_bytes(sys.stdin.buffer.read(4), "little")
    data = sys.stdin.buffer.read(size)
    if not data:  # the parent has ended
        sys.exit()
    return json.loads(data)


def _answer(message: object) -> None:
    data = json.dumps(message).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.flush()


def _serve() -> None:
    tokens, *ids = _receive()
    vocabulary = TrialVocabulary([data.encode("latin-1") for data in tokens], *ids)
    tokenizer = make_tokenizer(vocabulary, lambda data: [])
    _limit_memory()
    _answer("ready")
    while True:
        source = _receive()
        _set_clock(SECONDS)
        before = _memory()
        matcher = compile_grammar(tokenizer, source)
        error = str(matcher.get_error()) if matcher.is_error() else ""
        if not error and _slowest(matcher) > _SLOWEST:
            error = TOO_SLOW
        _set_clock(0)
        _answer(TrialVerdict(error[:2000], max(0, _memory() - before)))


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


if __name__ == "__main__":
    _serve()
