"""Why a token of a run is there, where another engine computed the run: what its record tells, and nothing
that it does not.
"""

from __future__ import annotations

from math import exp, isnan, nan
from typing import Any

from glassloop.decode.explanation import Explanation, Racer
from glassloop.errors import TraceError
from glassloop.record.origin import OtherEngine
from glassloop.record.run_record import NoSuchToken, RunRecord
from glassloop.record.token import Token
from glassloop.util.check import check_count, check_one_of
from glassloop.util.plain_text import percent, quoted

_UNKNOWN = "Its stages, its luck and the tokens that it did not name are not known here."
# Arguments of `explain_token` that ask for nothing else than what is recorded.
_IGNORED = ("of", "luck", "shown", "deadline", "logits")


def explain_reported(
    run: RunRecord, at: int, *, of: str = "answer", luck: str = "same", shown: int = 10, **overrides: Any
) -> Explanation:
    """Returns what the record of a run that another engine computed tells about a token. A what-if needs the
    model, so it is refused."""
    engine = run.upstream
    assert engine is not None
    check_one_of("luck", luck, ("same", "new"), TraceError)
    check_count("shown", shown, 0, 1 << 31)
    deciding_names = [name for name in overrides if name not in _IGNORED]
    if deciding_names or luck == "new":
        what = deciding_names[0] if deciding_names else "luck"
        raise TraceError.about(
            what,
            f"is given, which asks what would have come; {engine.described} computed this run, and only"
            " its record is known here",
        )
    token = _token(run, at, of)
    drawn = run.drawn_with(at if of == "answer" else 0)
    named = {other.id: _racer(other.id, other.text, other.raw_logprob) for other in token.alternatives}
    taken = named.pop(token.id, None) or _racer(token.id, token.piece, token.raw_logprob, token.rank)
    others = sorted(named.values(), key=lambda racer: -racer.raw_logprob)
    race = sorted([taken, *others[:shown]], key=lambda racer: -_or(racer.raw_logprob, -1e30))
    return Explanation(
        at + (len(run.prompt_ids) if of == "answer" else 0),
        drawn.seed,
        drawn.salt,
        drawn.sampling,
        (),
        tuple(race),
        taken,
        others[0] if others else None,
        nan,
        taken,
        "prompt" if of == "prompt" else token.source,
        None,
        _sentence(engine, token, taken, others, of),
        upstream=engine.described,
    )


def _token(run: RunRecord, at: int, of: str) -> Token:
    """Returns the record of a token; raises if there is none."""
    check_one_of("of", of, ("answer", "prompt"), TraceError)
    if of == "prompt":
        # The first token of a prompt has no record, as nothing comes before it.
        if not run.prompt_tokens:
            problem = (
                "is 'prompt', but the record has no numbers of the prompt; prompt_logprobs asks for them"
            )
            raise NoSuchToken.about("of", problem)
        return run.prompt_tokens[check_count("at", at, 1, len(run.prompt_tokens), "a token", NoSuchToken) - 1]
    return run.tokens[check_count("at", at, 0, len(run.tokens) - 1, "a token", NoSuchToken)]


def _racer(id: int, text: str, logprob: float, rank: int = 0) -> Racer:
    return Racer(id, text, rank, logprob, nan, None, None, nan, None, None)


def _sentence(engine: OtherEngine, token: Token, taken: Racer, others: list[Racer], of: str) -> str:
    source = engine.described
    name = quoted(taken.text)
    if token.source == "forced":
        came = f"You forced {name}"
        if isnan(taken.raw_logprob):
            return f"{came}; how likely it was is not known: the text before it went to {source}. {_UNKNOWN}"
        came += f", which had {percent(taken.raw_logprob)} according to {source}"
    elif isnan(taken.raw_logprob):
        return f"{name} came from {source}, which gave no probability for it. {_UNKNOWN}"
    else:
        verb = "is part of the prompt; it had" if of == "prompt" else "came with"
        came = f"{name} {verb} {percent(taken.raw_logprob)} according to {source}"
    if not others:
        return f"{came}, which named no other token. {_UNKNOWN}"
    best = others[0]
    likelier = sum(racer.raw_logprob > taken.raw_logprob for racer in others)
    if likelier:
        place = f"{likelier} of {len(others)} others that it named were likelier, first {quoted(best.text)}"
    else:
        place = f"of the {len(others)} others that it named none was likelier; next was {quoted(best.text)}"
    left = 1.0 - sum(exp(racer.raw_logprob) for racer in [taken, *others])
    rest = f", and {100 * left:.1f} % are for tokens that it did not name" if left > 0.0005 else ""
    return f"{came}: {place} with {percent(best.raw_logprob)}{rest}. {_UNKNOWN}"


def _or(value: float, other: float) -> float:
    return other if isnan(value) else value
