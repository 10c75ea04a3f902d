"""An edit: the text before and after, and every proposal with its numbers and the decision.

It can be saved as JSON (docs/editing.md describes the fields) and replayed from that record, bit for bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from glassloop.edit.proposal import DECIDED, Proposal
from glassloop.edit.work import EditWork
from glassloop.errors import TraceError
from glassloop.record.run import Run
from glassloop.util.check import FLAG, LIST, OBJECT, TEXT, ValueRule, is_number, one_of, or_none, require
from glassloop.util.files import read_at_most, write_text
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.deadline import Deadline

FORMAT = 1
KINDS = ("infill", "rewrite", "repair", "sharpen")
_MOST_BYTES = 256 << 20
_MOST_PROPOSALS = 1_000_000


@dataclass(eq=False)
class Edit:
    """The result of an edit. It is text if used as such: `str(edit)`."""

    kind: str  # infill, rewrite, repair, sharpen
    model: str
    model_hash: str
    ops: str
    seed: int
    given: dict[str, Any]  # what the edit was made from: texts, token ids and options
    before: str  # the text before; for an infill, with nothing in the hole
    text: str  # the text after
    token_ids: list[int]  # of the text after, without the prompt
    span: tuple[int, int]  # the characters of `text` that the edit was about
    proposals: list[Proposal] = field(repr=False)  # in order of decision
    sampled: int  # tokens that were drawn
    scored: int  # tokens that were given and scored
    created: float = field(default_factory=time.time)
    draft: Run | None = field(default=None, repr=False)  # the text before, as a run; None if read from a file
    run: Run | None = field(default=None, repr=False)  # the text after

    @classmethod
    def of(
        cls,
        work: EditWork,
        kind: str,
        draft: Run,
        run: Run,
        proposals: list[Proposal],
        given: Mapping[str, Any],
        span: tuple[int, int],
        texts: tuple[str, str] | None = None,
    ) -> Edit:
        """Returns the record of an edit that was computed. `texts` are the texts before and after, by default
        those of the runs, which do not have the prompt."""
        llm = work.llm
        before, after = texts or (draft.text, run.text)
        return cls(
            kind,
            llm.name,
            llm.model_hash,
            llm.op_set,
            work.luck.seed,
            {"prompt_ids": list(draft.prompt_ids), **given},
            before,
            after,
            run.token_ids,
            span,
            proposals,
            work.sampled,
            work.scored,
            draft=draft,
            run=run,
        )

    def __str__(self) -> str:
        return self.text

    @property
    def accepted(self) -> list[Proposal]:
        return [each for each in self.proposals if each.accepted]

    @property
    def lines(self) -> list[str]:
        """Each decision as one line for people."""
        return [
            f"{each.step}.{each.number} tokens {each.start}-{each.end} {shown(each.old_text)} → "
            f"{shown(each.text)}: {each.line}"
            for each in self.proposals
        ]

    @property
    def usage(self) -> dict[str, int]:
        return {"sampled": self.sampled, "scored": self.scored}

    def to_dict(self) -> dict[str, Any]:
        """Returns the edit as JSON has it."""
        plain = {name: getattr(self, name) for name in _FIELDS}
        return {
            "glassloop_edit": FORMAT,
            **plain,
            "span": list(self.span),
            "usage": self.usage,
            "draft": self.draft and self.draft.id,
            "run": self.run and self.run.id,
            "proposals": [each.to_dict() for each in self.proposals],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the record as JSON."""
        write_text(Path(path), json.dumps(self.to_dict(), ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Edit:
        """Returns an edit from a file; its runs are not part of it. Raises `TraceError` if it is damaged."""
        data = read_at_most(Path(path), _MOST_BYTES, TraceError)
        try:
            return cls.from_dict(json.loads(data))
        except (ValueError, RecursionError) as error:  # no JSON, or nested too deep
            raise TraceError(f"{path}: no record of an edit: {error}") from None
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, plain: Any) -> Edit:
        """Returns an edit from `to_dict`'s form, checked."""
        if not isinstance(plain, dict) or plain.get("glassloop_edit") != FORMAT:
            raise TraceError(f"glassloop_edit is not {FORMAT}; a record of an edit is expected")
        for name, rule in _FIELDS.items():
            require(name, plain.get(name), rule, TraceError)
        usage: Any = plain.get("usage")
        proposals: Any = plain.get("proposals")
        require("usage", usage, _USAGE, TraceError)
        require("proposals", proposals, LIST, TraceError)
        require("span", plain.get("span"), _span_of(plain["text"]), TraceError)
        if len(proposals) > _MOST_PROPOSALS:
            raise TraceError(
                f"proposals has {len(proposals)} entries; at most {_MOST_PROPOSALS} are expected"
            )
        return cls(
            **{name: plain[name] for name in _FIELDS},
            span=tuple(plain["span"]),
            proposals=[_proposal(f"proposals[{place}]", each) for place, each in enumerate(proposals)],
            sampled=usage["sampled"],
            scored=usage["scored"],
        )

    def replay(
        self,
        llm: EditReplayer,
        *,
        check: Any = None,
        deadline: Deadline | None = None,
    ) -> Replay:
        """Makes the edit again and compares every proposal, every number and the text. An edit that was made
        with a verifier needs it again."""
        return llm.replay_edit(self, check=check, deadline=deadline)


class EditReplayer(Protocol):
    """What can make an edit again: an `LLM`."""

    def replay_edit(self, edit: Edit, *, check: Any, deadline: Deadline | None) -> Replay: ...


@dataclass(frozen=True)
class Replay:
    """The verdict of a replay."""

    identical: bool
    proposals: int  # compared
    same: int  # how many are equal, to the last bit
    first: str | None  # what differs first
    edit: Edit = field(repr=False)  # the replayed edit

    def __bool__(self) -> bool:
        return self.identical

    def __str__(self) -> str:
        if self.identical:
            return f"identical, {self.proposals} of {self.proposals} proposals"
        return f"{self.first}; {self.same} of {self.proposals} proposals are the same"


def compare(recorded: Edit, repeated: Edit) -> Replay:
    """Compares two records of the same edit."""
    same, first = 0, None
    for place, old in enumerate(recorded.proposals):
        new = repeated.proposals[place] if place < len(repeated.proposals) else None
        differing = [name for name in DECIDED if new is None or getattr(old, name) != getattr(new, name)]
        same += not differing
        if differing and first is None:
            first = f"first differs at proposal {place}: its {differing[0]}"
    if first is None and len(repeated.proposals) != len(recorded.proposals):
        first = f"{len(repeated.proposals)} proposals were made, not {len(recorded.proposals)}"
    if first is None and (repeated.text, repeated.token_ids) != (recorded.text, recorded.token_ids):
        first = "all proposals are the same, but not the text"
    return Replay(first is None, len(recorded.proposals), same, first, repeated)


# ── checks of a file ───────────────────────────────────────────────────────────────────────────────────────


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_usage(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_count(value.get(name)) for name in ("sampled", "scored"))


def _span_of(text: str) -> ValueRule:
    def fits(value: Any) -> bool:
        return _is_ids(value) and len(value) == 2 and value[0] <= value[1] <= len(text)

    return ValueRule("two characters of the text", fits)


_COUNT = ValueRule("a whole number from 0", _is_count)
_NUMBER = ValueRule("a number", is_number)
_NUMBER_OR_NONE = or_none(_NUMBER, " or null")
_IDS = ValueRule("a list of token ids", _is_ids)
_USAGE = ValueRule("an object with sampled and scored", _is_usage)

_FIELDS: dict[str, ValueRule] = {
    "kind": one_of(*KINDS),
    "model": TEXT,
    "model_hash": TEXT,
    "ops": TEXT,
    "seed": ValueRule("a whole number below 2^64", _is_count),
    "given": OBJECT,
    "before": TEXT,
    "text": TEXT,
    "token_ids": _IDS,
    "created": _NUMBER,
}
_PROPOSAL: dict[str, ValueRule] = {
    **dict.fromkeys(("step", "number", "start", "end", "followed"), _COUNT),
    "ids": _IDS,
    **dict.fromkeys(("text", "old_text", "why"), TEXT),
    **dict.fromkeys(("own_bits", "following_bits"), _NUMBER),
    **dict.fromkeys(("old_own_bits", "old_following_bits", "coin", "threshold", "score"), _NUMBER_OR_NONE),
    **dict.fromkeys(("masked_bits", "old_masked_bits"), _NUMBER_OR_NONE),  # files of 0.1 do not have them
    "accepted": FLAG,
    "refusal": or_none(TEXT, " or null"),
}
assert set(_PROPOSAL) == set(DECIDED)


def _proposal(name: str, plain: Any) -> Proposal:
    require(name, plain, OBJECT, TraceError)
    for key, rule in _PROPOSAL.items():
        require(f"{name}.{key}", plain.get(key), rule, TraceError)
    seconds = plain.get("seconds", 0.0)
    require(f"{name}.seconds", seconds, _NUMBER, TraceError)
    return Proposal(**{key: plain.get(key) for key in _PROPOSAL}, drawn=None, seconds=seconds)
