"""The sentence of an explanation: which token came, how it came there, and what it was up against."""

from __future__ import annotations

from math import exp, inf
from typing import NamedTuple

from glassloop.decode.difference import in_quotes
from glassloop.decode.explanation import BeamRank, Racer


class ChoiceOutcome(NamedTuple):
    """The result of the choice at one place."""

    winner: Racer
    runner_up: Racer | None
    favourite: Racer  # the token with the highest logit before all stages
    margin: float
    taken: Racer | None  # the token that came, if something else than this choice decided that
    lucky: bool
    temperatures: tuple[float, float] | None  # between these the winner would be the same, if that is known


def sentence(
    source: str,
    outcome: ChoiceOutcome,
    beam: BeamRank | None,
    refused: Racer | None,
    came: Racer | None = None,
) -> str:
    """Returns the explanation in plain English. `source` is where the token came from; `refused` is the wrong
    guess of a drafter; `came` is the token of the record, by default the winner."""
    taken = outcome.taken
    if source == "prompt" and taken is not None:
        return _of_prompt(taken, outcome.favourite)
    if source == "beam":
        return _of_beam(outcome, beam)
    if source == "forced" and taken is not None:
        parts = [_of_forced(taken, outcome)]
    else:
        parts = [_race(outcome)]
    if outcome.temperatures is not None:
        parts.append(f"with this luck it would win at any temperature{_between(*outcome.temperatures)}")
    race = "; ".join([*parts, *_before_the_stages(outcome)])
    return f"{race}.{_drafted(source, came or outcome.winner, outcome.winner, refused)}"


def _of_prompt(taken: Racer, favourite: Racer) -> str:
    share = _percent(taken.raw_logprob)
    if taken.id == favourite.id:
        ranking = f"the model found it the likeliest, with {share}"
    else:
        best = f"{_quoted(favourite)} with {_percent(favourite.raw_logprob)}"
        ranking = f"the model ranked it {ordinal(taken.rank)}, with {share}; its own favourite was {best}"
    return f"{_quoted(taken)} is part of the prompt, so it was given and not chosen: {ranking}."


def _of_forced(taken: Racer, outcome: ChoiceOutcome) -> str:
    """Returns how the forced token would have done, and which token would have been chosen without it."""
    winner = outcome.winner
    if taken.id == winner.id:
        return f"You forced {_quoted(taken)}. It would have been chosen anyway: {_won(outcome, 'it')}"
    if taken.score is None or winner.score is None:
        fared = f"It had been removed by {taken.removed_by or 'the model itself'}"
    else:
        drew = f", drew {taken.luck:+.2f} of luck" if outcome.lucky else ""
        fared = f"It was {_place(taken)}{drew} and would have lost by {winner.score - taken.score:.2f}"
    instead = f"Without that, {_quoted(winner)} would have been chosen: {_won(outcome, 'it')}"
    return f"You forced {_quoted(taken)}. {fared}. {instead}"


def _of_beam(outcome: ChoiceOutcome, beam: BeamRank | None) -> str:
    winner, runner_up, taken = outcome.winner, outcome.runner_up, outcome.taken
    kept = ""
    if taken is not None:
        share = "removed by a stage" if taken.logprob is None else _percent(taken.logprob)
        if beam is None:
            which = "a beam that the search kept"
        else:
            best = "best" if beam.result == 1 else f"{ordinal(beam.result)} best"
            which = f"the beam that was {best} as a whole, {ordinal(beam.rank)} of {beam.beams} at this step"
        kept = f"{_quoted(taken)} ({share}) is on {which}. "
    same = taken is not None and taken.id == winner.id
    name = "it" if same else f"{_quoted(winner)} ({_percent(winner.logprob or 0.0)})"
    if runner_up is None:
        why = ": the stages left no other token"
    else:
        why = f", {outcome.margin:.2f} ahead of {_quoted(runner_up)}"
    alone = f"Looking at this step alone, {name} would have won{' as well' if same else ''}{why}"
    scored = "Beam search scores the whole text and has no luck. "
    return kept + scored + "; ".join([alone, *_before_the_stages(outcome)]) + "."


def _drafted(source: str, came: Racer, winner: Racer, refused: Racer | None) -> str:
    if refused is not None:
        return f" The drafter had guessed {_quoted(refused)}; the model chose {_quoted(came)}."
    if source != "draft":
        return ""
    return f" The drafter had guessed {'it' if came.id == winner.id else _quoted(came)}."


def _race(outcome: ChoiceOutcome) -> str:
    name = _quoted(outcome.winner)
    if outcome.lucky and outcome.runner_up is not None:
        return _won(outcome, name)
    return f"{name} won because {_won(outcome, 'it')}"


def _won(outcome: ChoiceOutcome, name: str) -> str:
    """Returns why the winner won, as a clause that calls it `name`."""
    winner, runner_up, margin = outcome.winner, outcome.runner_up, outcome.margin
    if runner_up is None:
        return "the stages left no other token"
    if not outcome.lucky:
        led = f"it led {_quoted(runner_up)} by {margin:.2f}, and greedy has no luck"
        return f"{name} was the likeliest ({_percent(winner.logprob or 0.0)}): {led}"
    drew = f"{name} was {_place(winner)}, drew {winner.luck:+.2f} of luck"
    other = f"{_quoted(runner_up)}, which had {_percent(runner_up.logprob or 0.0)} and {runner_up.luck:+.2f}"
    return f"{drew} and won by {margin:.2f} over {other}"


def _before_the_stages(outcome: ChoiceOutcome) -> list[str]:
    """Returns what to add where the stages changed which token the model likes best."""
    winner, favourite = outcome.winner, outcome.favourite
    if favourite.id != winner.id and favourite.removed_by is not None:
        named = f"{_quoted(favourite)} ({_percent(favourite.raw_logprob)})"
        return [f"the model's own favourite {named} had been removed by {favourite.removed_by}"]
    if winner.rank != winner.rank_after:
        before = f"{ordinal(winner.rank)} with {_percent(winner.raw_logprob)}"
        return [f"to the model itself the winner was {before}"]
    return []


def _place(token: Racer) -> str:
    place = "the likeliest" if token.rank_after == 1 else ordinal(token.rank_after or 0)
    return f"{place} with {_percent(token.logprob or 0.0)}"


def _between(lowest: float, highest: float) -> str:
    if lowest == 0:
        return "" if highest == inf else f" up to {highest:.2f}"
    return f" from {lowest:.2f} " + ("up" if highest == inf else f"to {highest:.2f}")


def _quoted(token: Racer) -> str:
    return in_quotes(token.text)


def _percent(logprob: float) -> str:
    share = 100 * exp(logprob)
    if share > 99.95 and logprob < 0:
        return "over 99.9 %"
    if share >= 0.1:
        return f"{share:.1f} %"
    return f"{share:.1g} %" if share >= 1e-6 else "almost nothing"


def ordinal(rank: int) -> str:
    """Returns "1st" for 1, and so on."""
    suffix = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{suffix}"
