"""The header of a recorded run: everything except its tokens, as JSON. docs/trace-format.md describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from typing import Any, TypeVar

from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import Plugin
from glassloop.errors import GlassloopError
from glassloop.record.origin import origin_of
from glassloop.record.run_parts import Beam, Drafts, Move, Past, Timings
from glassloop.record.run_record import RunRecord
from glassloop.record.token import Refusal, Token
from glassloop.text.answer_form import AnswerForm

R = TypeVar("R", bound=RunRecord)
# The fields that the header has as they are in the run. All others are converted below, except `error` and
# the objects of this process (`llm`, `above`, `children`), which no file has.
COPIED = (
    *("model", "prompt_ids", "seed", "context", "salt", "ops", "prompt", "messages", "id", "sample"),
    *("parent", "fork_at", "reason", "revised", "tail", "finish_reason", "stop_reason", "cached_tokens"),
    *("search", "created", "adapters"),
)


def to_header(run: RunRecord) -> dict[str, Any]:
    """Returns the header of a run, as JSON."""
    header = {name: getattr(run, name) for name in COPIED}
    header["model_hash"] = run.identity
    header["sampling"] = run.sampling.to_dict()
    header["past"] = [_past(past) for past in run.past]
    header["plugins"] = _plugins(run.plugins)
    header["samples"] = [each.id for each in run.samples]
    header["timings"] = asdict(run.timings)
    header["drafts"] = asdict(run.drafts)
    header["beams"] = [[beam.number, beam.parent, beam.id, beam.logprob, beam.fate] for beam in run.beams]
    header["moves"] = [list(astuple(move)) for move in run.moves]
    header |= run.origin.to_header()
    if run.form is not None:
        header["form"] = run.form._asdict()
    if run.pending:
        header["pending"] = run.pending
    header["forks"] = {str(position): count for position, count in run.forks.items()}
    answer = records_of(run)[len(run.prompt_tokens) :]
    header["refused"] = [[place, *token.refused] for place, token in enumerate(answer) if token.refused]
    # How many records belong to the prompt, to the answer, and to the token that ended it.
    header["prompt_records"] = len(run.prompt_tokens)
    header["records"] = len(run.tokens)
    header["end_records"] = 0 if run.end is None else 1
    return header


def options_in_header(run: RunRecord) -> dict[str, Any]:
    """Returns the part of a header that decides which tokens a model chooses after a prompt."""
    names = ("context", "seed", "salt", "past", "plugins", "adapters", "sampling")
    header = to_header(run)
    return {name: header[name] for name in names}


def records_of(run: RunRecord) -> list[Token]:
    """Returns the tokens that a file keeps: of the prompt, of the answer, and the one that ended it."""
    return [*run.prompt_tokens, *run.tokens, *([] if run.end is None else [run.end])]


def from_header(kind: type[R], header: dict[str, Any], records: list[Token]) -> R:
    """Returns the run of a checked header (`read_header`) and the tokens that belong to it, as an object of
    this class."""
    prompt, record_count, end = (header[name] for name in ("prompt_records", "records", "end_records"))
    for place, *guess in header.get("refused", ()):  # older files do not have it
        records[prompt + place].refused = Refusal(*guess)
    run = kind(
        **{name: header[name] for name in COPIED if name in header},  # older files do not have all
        model_hash=header["model_hash"],
        sampling=Sampling.from_dict(header["sampling"]),
        past=tuple(_read_past(past) for past in header["past"]),
        plugins=_read_plugins(header.get("plugins", {})),  # older files do not have it
        timings=Timings(**header["timings"]),
        drafts=Drafts(**header["drafts"]),
        beams=[Beam(*beam) for beam in header["beams"]],
        moves=[Move(*move) for move in header.get("moves", ())],  # older files do not have it
        origin=origin_of(header),
        pending=header.get("pending", []),
        form=AnswerForm(**header["form"]) if header.get("form") else None,  # only of models that think
        forks={int(position): count for position, count in header["forks"].items()},
        prompt_tokens=records[:prompt],
        tokens=records[prompt : prompt + record_count],
        end=records[-1] if end else None,
    )
    if run.finish_reason == "error":
        run.error = GlassloopError(run.stop_reason or "")
    return run


def _past(past: Past) -> dict[str, Any]:
    plain = {each.name: getattr(past, each.name) for each in fields(Past)}
    return plain | {"sampling": past.sampling.to_dict(), "plugins": _plugins(past.plugins)}


def _read_past(plain: dict[str, Any]) -> Past:
    plugins = _read_plugins(plain.get("plugins", {}))
    return Past(**{**plain, "sampling": Sampling.from_dict(plain["sampling"]), "plugins": plugins})


def _plugins(plugins: Mapping[str, Plugin]) -> dict[str, Any]:
    return {stage: plugin._asdict() for stage, plugin in plugins.items()}


def _read_plugins(plain: dict[str, Any]) -> dict[str, Plugin]:
    return {stage: Plugin(**each) for stage, each in plain.items()}
