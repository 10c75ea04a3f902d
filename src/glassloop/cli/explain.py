"""`glassloop explain`: why a token of a recorded run was chosen, stage by stage, or what would have come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from glassloop.cli.beams import print_beams
from glassloop.cli.flags import Flags, Only, flag, takes_flags
from glassloop.cli.help import OUTPUT
from glassloop.cli.naming import find_place
from glassloop.cli.options import EngineFlags, Json, RunModel
from glassloop.cli.remote import ServerFlags
from glassloop.cli.run_model import beam_pieces, model_of
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.stored_runs import Name, Which, find_run, found_as, is_path
from glassloop.cli.terminal import print_json, print_notes, print_table, quoted, visible, wrapped
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.decode.explain import Explanation
    from glassloop.record.run import Run
    from glassloop.record.token import Token

_WHAT = "What to explain"
_BEFORE = 60  # characters of the text before the token that are shown


@dataclass(frozen=True)
class ExplainFlags(Flags, group=_WHAT):
    """Which token is explained, and with which luck."""

    step: str | None = flag(
        None,
        "Which token: its number, from 0 (-1 is the last), or its text (the first one that has it). Default:"
        " the most surprising one.",
        *("--step", "-s"),
        metavar="N|TEXT",
    )
    in_prompt: bool = flag(False, "Explain a token of the prompt, not of the answer.", "--prompt")
    new_luck: bool = flag(False, "What if: use the luck that a fork at this token would have.", "--new-luck")
    number: int | None = flag(
        None,
        "Of a text that was written by diffusion: what this pass thought of the place. Default: the pass that"
        " filled it.",
        "--pass",
        min=0,
    )
    shown: int = flag(10, "How many candidates to show.", min=1, max=1000, group=OUTPUT)

    @property
    def of(self) -> Literal["answer", "prompt"]:
        """The tokens that are meant."""
        return "prompt" if self.in_prompt else "answer"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `explain`, for any engine."""
        in_pass = {} if self.number is None else {"number": self.number}
        return {"of": self.of, "luck": "new" if self.new_luck else "same", "shown": self.shown, **in_pass}


@takes_flags(prefix="What if", unset=True)
def explain(
    name: Name,
    *,
    what: ExplainFlags,
    which: Which = "",
    model: RunModel = None,
    as_json: Json = False,
    engine: Annotated[EngineFlags, Only("plugin", "holes", "ops")],
    remote: ServerFlags,
    **options: Any,
) -> None:
    """Say why a token was chosen: what each stage did, how much luck each candidate drew, and which one won.

    Any option of generate makes it a what-if question: with --temperature 0.3, for example, it says which
    token the same luck would have chosen.
    """
    server = remote.connect(
        model=model,
        ops=engine.ops,
        plugin=engine.plugin,
        holes=engine.holes,
        adapter=options.get("adapter"),
    )
    engine.load_plugins()
    overrides = sampling_options(options)
    run = find_run(name, which, server)
    # A file is explained here; the runs of a server are explained there.
    server = None if is_path(name) else server
    if what.number is not None and (run.diffusion is None or what.in_prompt):
        raise GlassloopError("--pass is given; a token that was filled by a pass of diffusion is expected")
    if overrides.get("adapter") == run.sampling.adapter:  # it was given to be loaded, not as a what-if
        overrides.pop("adapter", None)
    explained: Callable[..., Explanation]
    piece_of: Callable[[int], str] | None = None  # of tokens of a beam search
    if run.upstream is not None:  # which needs no model: only its record is known
        explained, pieces = run.explain, _recorded_pieces(run, what.in_prompt)
    elif server is not None:
        explained = partial(server.explain, run)
        pieces = server.prompt_pieces(run) if what.in_prompt else _answer_pieces(run)
    else:
        llm = engine.load(model or model_of(name, run))
        explained, piece_of = partial(llm.explain, run), llm.piece
        pieces = _prompt_pieces(llm, run) if what.in_prompt else _answer_pieces(run)
    at = _place(run, what.step, pieces, what.of)
    with _naming_step():
        explanation = explained(at, **what.arguments, **overrides)
    print_notes(explanation.notes)
    subject = _Subject(run, at, what.of, pieces)
    token = subject.token
    if as_json:
        record = None if token is None else token.to_dict()
        print_json({"run": run.id, "step": at, "of": what.of, "recorded": record, **explanation.to_dict()})
        return
    _print(subject, explanation, what.step is None)
    if token is not None and token.source == "beam" and run.beams:
        print()
        print_beams(run, piece_of or beam_pieces(found_as(name, run, server), run), until=at)
    changes = [f"{name}={value}" for name, value in overrides.items()] + ["new luck"] * what.new_luck
    if changes:
        _print_what_if(subject, explanation, changes)


def _answer_pieces(run: Run) -> list[str]:
    return [each.piece for each in (*run.tokens, *([run.end] if run.end else []))]


def _prompt_pieces(llm: LLM, run: Run) -> list[str]:
    from glassloop.engine.replay import check_run

    check_run(llm, run)  # before its token ids are looked up
    return list(map(llm.piece, run.prompt_ids))


def _recorded_pieces(run: Run, in_prompt: bool) -> list[str]:
    """Returns the tokens of a run of another engine. The first token of its prompt has no record."""
    if in_prompt:
        return ["", *(each.piece for each in run.prompt_tokens)]
    return [each.piece for each in run.tokens]


def _place(run: Run, step: str | None, pieces: list[str], of: str) -> int:
    """Returns the place of the token that `--step` names; by default that of the most surprising one. The
    tokens of a prompt are scored only if that was asked for."""
    from glassloop.record.worst import most_surprising

    if step is not None:
        return find_place(step, pieces, f"the {of}", "--step")
    if of == "answer":
        return next(iter(most_surprising(run.tokens)), 0)
    if not run.prompt_tokens:
        raise GlassloopError(
            "--prompt is given without --step; the number or the text of a token is expected"
        )
    return 1 + next(iter(most_surprising(run.prompt_tokens)), 0)  # the first token has no record


@contextmanager
def _naming_step() -> Iterator[None]:
    """Names the option in the error for a token that the run does not have."""
    from glassloop.record.run import NoSuchToken

    try:
        yield
    except NoSuchToken as error:
        raise NoSuchToken(str(error).replace("at is", "--step is", 1), field="--step") from None


@dataclass(frozen=True)
class _Subject:
    """The token that is explained, in its run."""

    run: Run
    at: int
    of: Literal["answer", "prompt"]
    pieces: list[str]  # of all tokens of this part

    @property
    def token(self) -> Token | None:
        """The record of the token, if there is one. That of a prompt counts only if another engine wrote
        the run."""
        if self.of == "answer":
            return self.run.tokens[self.at] if self.at < len(self.run.tokens) else self.run.end
        return None if self.run.upstream is None else self.run.prompt_tokens[self.at - 1]

    @property
    def piece(self) -> str | None:
        """The text of the token, or None if it is the one that would come next."""
        if self.of == "prompt":
            return self.pieces[self.at]
        return None if self.token is None else self.token.piece

    @property
    def before(self) -> str:
        """The text before the token."""
        if self.of == "answer":
            return (self.run.prompt or "") + "".join([each.text for each in self.run.tokens[: self.at]])
        if self.run.upstream is None:
            return "".join(self.pieces[: self.at])
        return "".join([each.text for each in self.run.prompt_tokens[: self.at - 1]])


def _print(subject: _Subject, explanation: Explanation, by_default: bool) -> None:
    """Prints the token in its text, the tables and the sentence. If `by_default`, the token was not named: it
    is the most surprising one."""
    before, piece, token = subject.before, subject.piece, subject.token
    cut = "…" if len(before) > _BEFORE else ""
    print(f"{cut}{visible(before[-_BEFORE:], newlines=False)} {'…' if piece is None else quoted(piece)}")
    of_prompt = " of the prompt" if subject.of == "prompt" else ""
    place = f"token {subject.at}{of_prompt} of run {subject.run.id[:8]}"
    model = visible(subject.run.model, newlines=False)
    source = "prompt" if of_prompt else "to come" if token is None else token.source
    chosen = " · the most surprising one; --step N explains another" if by_default and piece else ""
    print(wrapped(f"{place} · {model} · seed {explanation.seed} · {source}{chosen}") + "\n")
    print_reasons(explanation)


def _print_what_if(subject: _Subject, explanation: Explanation, changes: list[str]) -> None:
    """Prints which token other options or other luck would have chosen."""
    winner, piece = explanation.winner, subject.piece
    result = quoted(winner.text)
    if piece is not None:
        token_id = subject.run.prompt_ids[subject.at] if subject.token is None else subject.token.id
        result = "nothing changes" if winner.id == token_id else f"{result} instead of {quoted(piece)}"
    print(visible(f"What if {', '.join(changes)}: {result}.", newlines=False))


def print_reasons(explanation: Explanation) -> None:
    """Prints the tables of the stages and of the race, and the sentence. Where the record differs from what
    is computed now, the sentence, which says so, comes first."""
    from glassloop.decode.explain_text import race_table, stage_table

    sentence = wrapped(visible(explanation.sentence))
    if explanation.difference is not None:
        print(sentence + "\n")
    if explanation.stages:
        stages = stage_table(explanation)
        print_table(stages.header, stages.rows, right=stages.right, fold=("removed", "moved"))
        print()
    race = race_table(explanation)
    won = [racer.id for racer in explanation.candidates].index(explanation.taken.id)
    print_table(race.header, race.rows, right=race.right, bold=won)
    if explanation.difference is None:
        print("\n" + sentence)
