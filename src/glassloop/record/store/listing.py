"""A part of the list of runs: the newest, of one tree, with a text in them, or after another run in the list.
A store selects its rows by it, and a server its runs in memory."""

from __future__ import annotations

from dataclasses import dataclass

from glassloop.record.messages import text_of
from glassloop.record.run import Run
from glassloop.record.run_name import run_id
from glassloop.record.store.tables import ADDED

MOST_SEARCH = 200  # characters
ORDER = f"ORDER BY {ADDED} DESC, id DESC"


@dataclass(frozen=True)
class Listing:
    """A part of the list of runs, the newest first."""

    limit: int | None = None
    tree: str | None = None
    search: str = ""  # a part of the title, the prompt, the conversation or the text, or the start of an id
    before: tuple[float, str] | None = None  # when the run before the first one was added, and its id
    owner: str | None = None  # whose runs they are; those of all if not given

    def where(self, contains: str) -> tuple[str, list[object]]:
        """Returns the condition in SQL, with its values. `contains` is the database's condition for a
        search."""
        parts, values = ["1 = 1"], list[object]()
        if self.owner is not None:
            parts.append("owner = ?")
            values.append(self.owner)
        if self.tree is not None:
            parts.append("tree = ?")
            values.append(self.tree)
        if self.before is not None:
            parts.append(f"({ADDED}, id) < (?, ?)")
            values += self.before
        if self.search:
            folded = self.search.casefold()
            parts.append(f"({contains} OR substr(id, 1, ?) = ?)")
            start = run_id(folded) or folded
            values += [folded, len(start), start]
        return " AND ".join(parts), values

    def has(self, run: Run, tree: str, added: float, owner: str = "") -> bool:
        """Returns whether a run in memory is one of these, the limit aside."""
        if self.owner not in (None, owner) or self.tree not in (None, tree):
            return False
        if self.before is not None and (added, run.id) >= self.before:
            return False
        folded = self.search.casefold()
        if not folded or run.id.startswith(run_id(folded) or folded):
            return True
        return contains(folded, run.known_title, run.prompt, talk_of(run), run.text)


def contains(folded: str, *texts: object) -> bool:
    """Returns whether one of the texts contains this one, which is given in lower case (`casefold`)."""
    return any(isinstance(text, str) and folded in text.casefold() for text in texts)


def talk_of(run: Run) -> str | None:
    """Returns the texts of the conversation that a run's prompt is, if it is one."""
    return None if run.messages is None else "\n".join(map(text_of, run.messages))
