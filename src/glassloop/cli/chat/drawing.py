"""A conversation as text: its tree, and a transcript of the current path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassloop.util.shown import cut

if TYPE_CHECKING:
    from glassloop.cli.chat.conversation import Conversation, Turn
    from glassloop.record.run import Run

_WIDTH = 44


def draw(talk: Conversation) -> str:
    """Returns the tree: below each question its answers. A filled circle marks the current path."""
    path = talk.at.path if talk.at else []
    lines: list[str] = []
    _draw(talk.roots, path, "", lines)
    return "\n".join(lines) or "no question has been asked yet"


def _draw(turns: list[Turn], path: list[Turn], indent: str, lines: list[str]) -> None:
    questions = dict.fromkeys(turn.question for turn in turns)
    for question in questions:
        answers = [turn for turn in turns if turn.question == question]
        lines.append(f"{indent}› {_line(question)}")
        for turn in answers:
            mark = "●" if turn in path else "○"
            here = "  ← here" if path and turn is path[-1] else ""
            shown = _line(_own(turn.run), _ending(turn.run))
            lines.append(f"{indent}  {mark} {turn.run.id[:8]}  {shown}{here}")
            # A conversation without branches is not indented, however long it is.
            alone = len(questions) == 1 and len(answers) == 1
            _draw(turn.below, path, indent if alone else indent + "    ", lines)


def _own(run: Run) -> str:
    """Returns the part of an answer that it does not share with its parent, and how it was made."""
    if run.reason is None:
        return run.text
    if run.reason == "rewound":
        return f"rewound to {run.fork_at}: {run.text}"
    text = "".join([token.text for token in run.tokens[run.fork_at or 0 :]]) + run.tail
    return f"from token {run.fork_at}:{text if text[:1].isspace() else ' ' + text}"


def _ending(run: Run) -> str:
    return f" ({ending(run)})" if ending(run) and run.reason != "rewound" else ""


def ending(run: Run) -> str:
    """Returns how an answer ended, or nothing if the model ended it."""
    if run.finish_reason == "cancelled":
        return "" if run.stop_reason == "rewound" else "stopped"
    if run.finish_reason == "length":
        return f"cut by {run.stop_reason}"
    return "" if run.finish_reason == "stop" else run.finish_reason or ""


def transcript(talk: Conversation) -> str:
    parts = [] if talk.system is None else [f"**system**\n\n{talk.system}\n"]
    for turn in talk.at.path if talk.at else []:
        mark = f"\n\n*({ending(turn.run)})*" if ending(turn.run) else ""
        parts.append(f"**you**\n\n{turn.question}\n")
        parts.append(f"**{talk.llm.name}** · run {turn.run.id}\n\n{turn.run.text}{mark}\n")
    return "\n".join(parts)


def _line(text: str, ending: str = "") -> str:
    """Returns a text on one line, cut so that its ending is always shown."""
    return cut(" ".join(text.split()), _WIDTH - len(ending)) + ending
