"""What must hold of every run, whatever it has been through: the laws. Each has a name, by which a failure is
known and can be ignored (`--without law:NAME`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
from crossings.stages import StageFailed
from crossings.world import World
from engine.small import EOS

from glassloop.engine.drafting.draft_model import DraftModel
from glassloop.engine.replay import token_at
from glassloop.errors import GlassloopError, SamplingError
from glassloop.record.run import Run


class Broken(Exception):
    """A law does not hold."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law
        self.detail = detail


class Judge:
    """Checks laws, counts how often, and leaves out those that are to be ignored."""

    def __init__(self, ignored: Sequence[str] = ()) -> None:
        self._ignored = frozenset(ignored)
        self.counts: Counter[str] = Counter()  # what happened
        self.comparisons = 0

    def must(self, holds: bool, law: str, detail: Callable[[], str]) -> None:
        self.comparisons += 1
        if not holds and law not in self._ignored:
            raise Broken(law, detail())

    def refusal(self, error: Exception, what: str) -> tuple[str, str]:
        """Checks an exception that a call has raised. Returns it as data, to compare it with another."""
        named = not isinstance(error, SamplingError) or error.field is not None
        known = isinstance(error, (GlassloopError, StageFailed))
        self.must(
            known and named, "refusal", lambda: f"{what}: {type(error).__name__} without a field: {error}"
        )
        self.counts["refusals"] += 1
        return type(error).__name__, str(error)

    # ── of one run ─────────────────────────────────────────────────────────────────────────────────────────

    def same(self, run: Run, expected: Run, what: str) -> None:
        """Two runs are the same in every number that is recorded."""
        mine, other = record(run), record(expected)
        for name, value in mine.items():
            if value != other[name]:
                self.must(
                    False, "alone", lambda name=name: f"{what}: {name}: {_first(mine[name], other[name])}"
                )
        self.comparisons += 1

    def same_tokens(self, run: Run, expected: Run, law: str, what: str) -> None:
        """Two runs have the same tokens and end in the same way."""
        for name in ("tokens", "text", "finish_reason", "stop_reason", "end"):
            mine, other = getattr(run, name), getattr(expected, name)
            told = f"{what}: {name}: {_first(mine, other)}"
            self.must(mine == other, law, lambda told=told: told)

    def begins(self, run: Run, expected: Run, what: str) -> None:
        """A run that was cut short has the first tokens of the whole one, or of one that this took back."""
        whole = [expected, *expected.drafts_taken_back]
        made = run.tokens
        self.must(
            any(made == each.tokens[: len(made)] for each in whole),
            "alone",
            lambda: f"{what}, cut short ({run.stop_reason}): {_first(made, expected.tokens[: len(made)])}",
        )

    def text(self, run: Run, what: str) -> None:
        """The text is that of the tokens' bytes, and ends before the first stop string."""
        if EOS in run.token_ids and run.sampling.stop:  # the name of the end may have a stop string in it
            return
        data = b"".join([token.bytes for token in run.tokens])
        stop = run.stop_reason if run.finish_reason == "stop" and run.end is None else None
        if stop in run.sampling.stop:
            ends = data.endswith(stop.encode())
            self.must(
                ends, "stop", lambda: f"{what} ended by {stop!r}, which its tokens do not end with: {data!r}"
            )
            data = data if run.sampling.include_stop else data.removesuffix(stop.encode())
        # A search that is cut short, by memory too, ends all of its results by that, finished ones too.
        elif (
            _is_free(run)
            and not run.sampling.min_tokens
            and run.finish_reason in ("length", "stop")
            and not (run.sampling.beam_width > 1 and run.cut_short)
        ):
            # A token that ends the text may complete a stop string too; then it is named as the reason.
            ends = run.finish_reason == "stop" and bool(run.tokens) and run.end is None
            before = data.removesuffix(run.tokens[-1].bytes) if ends else data
            found = [each for each in run.sampling.stop if each.encode() in before]
            self.must(not found, "stop", lambda: f"{what} has {found} in it, and went on")
        whole = data.decode("utf-8", "replace")
        self.must(run.text == whole, "text", lambda: f"{what}: {run.text!r} is not {whole!r}")

    def sample(self, run: Run, what: str) -> None:
        """The tokens of a run say of which sample they are."""
        records = run.tokens if run.end is None else [*run.tokens, run.end]
        odd = [token.sample for token in records if token.sample != run.sample]
        if run.fork_at is None:
            self.must(not odd, "sample", lambda: f"{what}: sample {run.sample} has tokens of {odd}")

    def repetition(self, run: Run, what: str) -> None:
        """A run ends by repetition where one is first complete, and nowhere else."""
        ids, rounds = run.token_ids, run.sampling.stop_on_repetition
        if run.finish_reason == "repetition":
            self.must(_repeats(ids, rounds), "repetition", lambda: f"{what} ended, and {ids} does not repeat")
        if rounds and _is_free(run) and run.diffusion is None:
            least = max(run.sampling.min_tokens, 1)
            early = [end for end in range(least, len(ids)) if _repeats(ids[:end], rounds)]
            self.must(not early, "repetition", lambda: f"{what} repeats itself at {early[:1]}, and went on")

    def replayed(self, world: World, run: Run, what: str, first: int = 0) -> None:
        verdict = world.replay(run, first=first)
        if world.ops == "reference":  # its sums depend on the batch, so that a near tie may end otherwise
            return
        self.must(verdict.identical, "replay", lambda: f"{what} from {first}: {verdict.sentence}")

    def explained(self, world: World, run: Run, at: int, what: str) -> None:
        """An explanation names the token that came, with the numbers of its record."""
        token = token_at(run, at)
        if token is None or world.ops == "reference":
            return
        told = world.explain(run, at)
        found = told.taken
        self.must(found.id == token.id, "explain", lambda: f"{what} at {at}: {found.id} is not {token.id}")
        pairs = [("raw_logprob", found.raw_logprob, token.raw_logprob)]
        if token.source in ("sampled", "draft", "forced", "beam"):
            pairs += [("logprob", -inf if found.logprob is None else found.logprob, token.logprob)]
        if token.source in ("sampled", "draft"):
            pairs += [("luck", found.luck, token.luck), ("margin", told.margin, token.margin)]
        for name, mine, recorded in pairs:
            self.must(
                mine == recorded,
                "explain",
                lambda name=name, mine=mine, recorded=recorded: (
                    f"{what} at {at}: {name} is {mine}, recorded {recorded}"
                ),
            )

    def prompt(self, world: World, run: Run, at: int, what: str) -> None:
        """The records of a prompt are what `explain` says of its tokens, and there are all of them."""
        wanted = (len(run.prompt_ids) - 1) * (run.sampling.prompt_logprobs > 0)
        made = len(run.prompt_tokens)
        if run.finish_reason not in ("cancelled", "error", "timeout") and run.stop_reason != "kv memory":
            self.must(made == wanted, "prompt", lambda: f"{what}: {made} records of the prompt, not {wanted}")
        if not made or run.past:
            return
        place = 1 + at % made
        token, told = run.prompt_tokens[place - 1], world.explain(run, place, of="prompt")
        near = abs(told.taken.raw_logprob - token.raw_logprob) < 1e-3 and world.ops == "reference"
        same = told.taken.id == token.id and (near or told.taken.raw_logprob == token.raw_logprob)
        self.must(same, "prompt", lambda: f"{what}: {told.taken} is not {token} at {place}")

    def run(self, world: World, run: Run, what: str, at: float, light: bool = False) -> None:
        """All laws of one run that has ended. `at` chooses the places that are looked at."""
        self.text(run, what)
        self.sample(run, what)
        self.repetition(run, what)
        if run.error is not None or not (run.tokens or run.end):
            return
        self.replayed(world, run, what)
        if light:
            return
        places = len(run.tokens) + (run.end is not None)
        for part in (at, (at * 7) % 1):
            self.explained(world, run, min(int(part * places), places - 1), what)
        if run.end is not None:
            self.explained(world, run, len(run.tokens), what)
        if run.diffusion is None:
            self.prompt(world, run, int(at * 1000), what)
            self.replayed(world, run, what, int(at * places))

    # ── of an engine ───────────────────────────────────────────────────────────────────────────────────────

    def integrity(self, world: World) -> None:
        try:
            world.engine.loop.tree.check_integrity()
        except AssertionError as error:
            self.must(False, "integrity", lambda error=error: str(error))
        self.comparisons += 1

    def nothing_held(self, world: World) -> None:
        """All that requests held is given back. Called on the engine's thread, or when it rests."""
        loop = world.engine.loop
        trees = [loop.tree]
        if isinstance(loop.drafts, DraftModel):
            trees.append(loop.drafts.tree)
        for tree in trees:
            held = tree.held, len(tree.paths)
            self.must(
                held == (0, 0), "held", lambda held=held: f"{held[0]} pages and {held[1]} paths are held"
            )
        open_tasks = len(loop.tasks.by_request), len(loop.scheduler.running), len(loop.scheduler.waiting)
        self.must(open_tasks == (0, 0, 0), "held", lambda: f"tasks, running, waiting: {open_tasks}")
        self.integrity(world)


def record(run: Run) -> dict[str, Any]:
    """Returns all of a run that depends on its request alone."""
    error = None if run.error is None else (type(run.error).__name__, str(run.error))
    names = ("prompt_ids", "seed", "salt", "sample", "tokens", "text", "finish_reason", "stop_reason", "end")
    made = {name: getattr(run, name) for name in (*names, "prompt_tokens", "passes", "beams", "revised")}
    taken = [each.tokens for each in run.drafts_taken_back]
    return made | {"error": error, "samples": len(run.samples), "taken back": taken}


def _is_free(run: Run) -> bool:
    """Returns whether a run has chosen all of its tokens: those that are kept or forced do not end it."""
    return not run.past and all(token.source != "forced" for token in run.tokens)


def _repeats(ids: Sequence[int], rounds: int) -> bool:
    """Returns whether the last tokens are one sequence, of any length, this many times in a row."""
    spans = range(1, len(ids) // rounds + 1)
    return any(all(ids[-at] == ids[-at - span] for at in range(1, span * (rounds - 1) + 1)) for span in spans)


def _first(mine: Any, other: Any) -> str:
    """Returns the first difference of two values in words."""
    if not isinstance(mine, list) or not isinstance(other, list):
        return f"{mine!r} is not {other!r}"
    for place, (one, two) in enumerate(zip(mine, other, strict=False)):
        if one != two:
            names = [
                name
                for name in ("id", "text", "logprob", "raw_logprob", "luck", "margin", "rank_after")
                if getattr(one, name, None) != getattr(two, name, None)
            ]
            told = ", ".join(f"{name} {getattr(one, name)} for {getattr(two, name)}" for name in names[:2])
            return f"at {place} of {len(mine)}: {told or f'{one!r} for {two!r}'}"
    return f"{len(mine)} entries, not {len(other)}"


def log_softmax(row: np.ndarray, token: int) -> float:
    row = row.astype(np.float64)
    return float(row[token] - np.logaddexp.reduce(row))
