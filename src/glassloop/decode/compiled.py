"""What is built from the options of a request before it can run: the chain of stages and the automata of its
stop strings, bad words and grammar.

Building may take long and may fail, so it is done once per request, on the caller's thread and never on the
engine's. The samples and beams of the request share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassloop.decode.bad_words import BadWords
from glassloop.decode.chain import build_chain
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import Stage
from glassloop.errors import SamplingError
from glassloop.text.stops import StopStrings
from glassloop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from glassloop.decode.grammar import Grammar


@dataclass(frozen=True, eq=False)
class Compiled:
    sampling: Sampling
    chain: tuple[Stage, ...]
    stops: StopStrings | None
    bad_words: BadWords | None
    grammar: Grammar | None  # in the state at the start of a text, to be forked

    @classmethod
    def of(cls, sampling: Sampling, vocab_size: int, tokenizer: Tokenizer | None) -> Compiled:
        """Builds everything. Raises a `SamplingError` that says what cannot be built."""
        if sampling.diffusion is not None:  # `LLM.prepare` has taken it out where it can be followed
            raise SamplingError.about(
                "diffusion",
                "is given; only whole answers are written by diffusion, not forks or single tokens",
            )
        _check_length("stop", sampling.stop)
        _check_length("bad_words", sampling.bad_words)
        return cls(
            sampling,
            build_chain(sampling, vocab_size),
            StopStrings(sampling.stop) if sampling.stop else None,
            BadWords(sampling.bad_words, tokenizer) if sampling.bad_words else None,
            _grammar(sampling, vocab_size, tokenizer),
        )


# Characters and token ids of all stop strings, or of all bad words: 150 MB as an automaton.
_LONGEST = 1 << 20


def _check_length(name: str, words: Sequence[str | tuple[int, ...]]) -> None:
    length = sum(map(len, words))
    if length > _LONGEST:
        problem = f"has {length} characters or token ids; at most {_LONGEST} are expected"
        raise SamplingError.about(name, problem)


def _grammar(sampling: Sampling, vocab_size: int, tokenizer: Tokenizer | None) -> Grammar | None:
    if sampling.constraint is None:
        return None
    if tokenizer is None:
        raise SamplingError.about(sampling.constraint, "needs a tokenizer")
    from glassloop.decode.grammar import Grammar  # imports a library that most requests do not need

    return Grammar(sampling, vocab_size, tokenizer)
