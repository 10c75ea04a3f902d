"""A beam search as a tree: which beams were kept, which were pruned and when, each with its score."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from glassloop.cli.terminal import print_table, quoted

if TYPE_CHECKING:
    from glassloop.record.run import Beam, Run

_FEWEST, _MOST = 6, 40  # beams that are shown: as many as the screen has room for, and in a pipe the most
_TAKEN = 14  # lines of the screen that are left for other things
_WORTH = {"chosen": 0, "finished": 1, "live": 2}  # which beams are shown first; pruned ones come last


class _Line(NamedTuple):
    """A line of the drawing: nodes that follow one another without a branch."""

    branch: str
    nodes: list[Beam]


def print_beams(run: Run, piece: Callable[[int], str], until: int | None = None) -> None:
    """Prints the tree of a run's beam search. With `until`, only its first steps, up to the token at this
    place: a beam that was continued there counts as kept."""
    depths = _depths(run.beams, until)
    nodes = {beam.number: beam for beam in run.beams if beam.number in depths}
    run_path = _path(run)
    inner = {beam.parent for beam in nodes.values()}
    leaves = [beam for beam in nodes.values() if beam.number not in inner]
    # The run's own beam first, then other results, then those that were pruned last.
    leaves.sort(
        key=lambda beam: (
            beam.number not in run_path,
            _WORTH.get(beam.fate, len(_WORTH)),
            -depths[beam.number],
            -beam.logprob,
        )
    )
    room = max(_FEWEST, shutil.get_terminal_size().lines - _TAKEN) if sys.stdout.isatty() else _MOST
    rows: list[tuple[str, ...]] = []
    bold: int | None = None
    continued = {beam.parent for beam in run.beams}
    for line in _drawn(leaves[:room], nodes):
        last = line.nodes[-1]
        score, fate = "", ""
        if last.number not in inner:
            depth = depths[last.number]
            score = f"{last.logprob / depth**run.sampling.length_penalty:.2f}"
            fate = last.fate
            if fate == "live":  # a text that ended, but with a lower score than the best
                fate = "kept" if last.number in continued else "not among the best"
            elif fate == "pruned" and depth - 1 != until:
                fate = f"pruned after token {depth - 1}"
            bold = len(rows) if last.number in run_path else bold
        text = quoted("".join(piece(beam.id) for beam in line.nodes))
        rows.append((line.branch + text, f"{last.logprob:.2f}", score, fate))
    header = ("beam", "logprob", "score", "outcome")
    print_table(header, rows, right=("logprob", "score"), cut=("beam",), bold=bold)
    if len(leaves) > room:
        print(f"… and {len(leaves) - room} more beams, which were pruned earlier")


def beam_logprobs(run: Run) -> list[float]:
    """Returns the log-probability of the run's beam up to each of its tokens, as far as that is recorded."""
    nodes = {beam.number: beam for beam in run.beams}
    return [nodes[number].logprob for number in _path(run)]


def _depths(beams: Iterable[Beam], until: int | None) -> dict[int, int]:
    """Returns how many tokens each node has from the prompt to itself, down to the token `until`."""
    depths: dict[int, int] = {}
    for beam in beams:  # parents come before their children
        above = 0 if beam.parent is None else depths.get(beam.parent)
        if above is not None and (until is None or above <= until):
            depths[beam.number] = above + 1
    return depths


def _path(run: Run) -> list[int]:
    """Returns the numbers of the nodes of the run's own beam, from the first token on."""
    nodes = {(beam.parent, beam.id): beam.number for beam in run.beams}
    path: list[int] = []
    for token in (*run.tokens, *([run.end] if run.end else [])):
        number = nodes.get((path[-1] if path else None, token.id))
        if number is None:
            break
        path.append(number)
    return path


def _drawn(leaves: list[Beam], nodes: dict[int, Beam]) -> Iterable[_Line]:
    """Yields the lines of the tree that leads to these beams. The branch to the first of them is on top."""
    below: dict[int | None, list[Beam]] = {}
    added: set[int] = set()
    for leaf in leaves:
        beam: Beam | None = leaf
        while beam is not None and beam.number not in added:
            added.add(beam.number)
            below.setdefault(beam.parent, []).append(beam)
            beam = None if beam.parent is None else nodes[beam.parent]
    waiting = [("", "", beam) for beam in reversed(below.get(None, []))]
    while waiting:
        branch, indent, beam = waiting.pop()
        chain = [beam]
        while len(children := below.get(chain[-1].number, [])) == 1:
            chain.append(children[0])
        yield _Line(branch, chain)
        for child in reversed(children):
            end, more = ("└─ ", "   ") if child is children[-1] else ("├─ ", "│  ")
            waiting.append((indent + end, indent + more, child))
