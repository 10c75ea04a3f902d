"""Tries each grammar in a child process before it is compiled here.

llguidance is recursive (a chain of rules or references overflows the stack, which ends the process) and has
no time limit (`{"type": "integer", "multipleOf": 999983}` takes 20 s). So a child process first compiles a
grammar and uses it for a few tokens (`trial_worker.py`), under limits on time and memory; if the child
survives, the grammar is compiled here, in the same way.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from glassloop.decode.trial_worker import TOO_SLOW, TrialVerdict, TrialVocabulary
from glassloop.util.child import Child, Patience
from glassloop.util.child_pool import ChildPool

TOO_MUCH = "it takes too much time or memory to compile"
_SCRIPT = Path(__file__).with_name("trial_worker.py")
_START = 120.0  # seconds that a child may take to start, on a machine that is busy
_WAIT = 20.0  # seconds until a child that does not answer is killed
_TRIES = 2  # a child may also end, be slow or not answer in time because of what the machine does
_LONGEST_ANSWER = 1 << 16  # bytes


class Trials:
    """A child process that tries grammars for one vocabulary, one at a time. It is started when needed,
    restarted after a grammar has ended it, and ends with its parent."""

    def __init__(self, vocabulary: TrialVocabulary) -> None:
        self.pool = ChildPool(partial(_start, vocabulary), most=1)

    def start(self) -> None:
        """Starts the child if there is none."""
        with suppress(OSError), self.pool.lend(None):
            pass

    def run(self, source: str) -> TrialVerdict | None:
        """Tries a grammar in the child. Returns None if it has ended each child that tried it. Raises
        `OSError` if no child can be started."""
        verdict = None
        for _ in range(_TRIES):
            verdict = self._try(source)
            if verdict is not None and verdict.error != TOO_SLOW:
                break
        return verdict

    def _try(self, source: str) -> TrialVerdict | None:
        try:
            with self.pool.lend(None) as child:
                answer = child.ask(json.dumps(source).encode(), Patience(_WAIT), _LONGEST_ANSWER)
                if answer is None:
                    raise TimeoutError
        except TimeoutError:
            return None
        return TrialVerdict(*json.loads(answer))


def _start(vocabulary: TrialVocabulary, _: None) -> Child:
    """Returns a child that is ready to try a grammar."""
    path = os.pathsep.join(str(Path(each).absolute()) for each in filter(None, sys.path))
    child = Child(_SCRIPT, {**os.environ, "PYTHONPATH": path}, flags=("-P",))
    tokens = [data.decode("latin-1") for data in vocabulary.tokens]
    setup = json.dumps([tokens, *vocabulary[1:]]).encode()
    try:
        if child.ask(setup, Patience(_START), _LONGEST_ANSWER) is None:
            raise OSError("the process that tries grammars has ended at its start")
    except TimeoutError:
        child.end()
        raise OSError("the process that tries grammars does not start") from None
    return child
