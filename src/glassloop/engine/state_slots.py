"""The slots of recurrent layers in the KV tree: a state at the end of full nodes, a row for single tokens.

A path can go on at a length if the state at the start of its last page is kept, and the rows of the tokens in
that page. What a path needs for that is its own until it has moved on (`KVPath.first_open`); all else stays
until a slot is needed, and is computed again from the nearest state before it if a path comes back. Which
states are kept changes no bit of a result, only how much that is: the older a state is, the more of those
around it are given away, so that a way back by n tokens computes about n tokens again, or fewer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from glassloop.engine.integrity import must
from glassloop.engine.kv_nodes import GONE, KVPath, Node, NoRoom
from glassloop.ops.batch import PAGE
from glassloop.ops.state_cache import STATE_LINES

_GRID = 16  # pages: a state at every such border takes the place of one that is less worth
_BRANCHING = 2  # how many borders' worth a state is more if texts part after it, or end there


class StateSlots:
    """All slots, and which nodes have them."""

    def __init__(self, states: int, rows: int, paths: Collection[KVPath]) -> None:
        """`paths` are those of the tree, as they are at any time."""
        self._paths = paths
        self.state_count, self.row_count = states, rows
        self._free_states = list(range(states - 1, -1, -1))
        self._free_rows = list(range(rows - 1, -1, -1))
        self._row_refs = [0] * rows
        self._clock = 0
        self._with_state: dict[Node, int] = {}  # when it was kept or last used
        self._with_rows: dict[Node, None] = {}  # in the order in which they were last written
        self.states_given_back = 0  # since the start, to make room for others

    @property
    def states_kept(self) -> int:
        return self.state_count - len(self._free_states)

    @property
    def rows_kept(self) -> int:
        return self.row_count - len(self._free_rows)

    def has_room(self, branches: int) -> bool:
        """Returns whether so many branches can run beside each other, most of the time."""
        return branches + 2 <= self.state_count and PAGE * branches <= self.row_count

    # ── where a path can go on ─────────────────────────────────────────────────────────────────────────────

    def usable(self, nodes: Sequence[Node], length: int) -> int:
        """Returns the largest length, at most `length`, at which a path along these nodes can go on."""
        index, within = divmod(length, PAGE)
        while index > 0 and not nodes[index - 1].end_ready:
            index, within = index - 1, PAGE - 1
        if within:
            within = min(within, nodes[index].rows_ready)
        return index * PAGE + within

    def enter(self, path: KVPath) -> None:
        """Notes that a path goes on at its length, along its nodes."""
        path.first_open = path.length // PAGE
        if path.first_open and (start := path.nodes[path.first_open - 1]).end != GONE:
            self._clock += 1
            self._with_state[start] = self._clock

    # ── slots ──────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, path: KVPath, before: int) -> None:
        """Takes slots for what the coming forward pass leaves behind of the tokens from `before` on, and
        enters them into the page table. If there are not enough, raises NoRoom."""
        length = path.length
        path.first_open = before // PAGE
        last = (length - 1) // PAGE
        # A draft may be taken back to anywhere; of a prompt the last page is enough.
        is_short = length - before <= PAGE
        for index in range(path.first_open, last + 1):
            node, end = path.nodes[index], min(PAGE, length - index * PAGE)
            if is_short or (index == last and end < PAGE):
                self._take_rows(node, end)
            if end == PAGE and node.end == GONE:
                border = index + 1
                is_last = border == length // PAGE
                if is_short or is_last or self._free_states or border % _GRID == 0:
                    self._take_state(node, is_short or is_last)
        self._point(path, max(0, path.first_open - 1), last)

    def computed(self, path: KVPath) -> None:
        """Notes that the slots of a path's last extension have been written."""
        before = path.first_open * PAGE
        for node, end in path.fresh:
            node.rows_ready = max(node.rows_ready, min(end, len(node.rows)))
            node.end_ready = node.end_ready or (end == PAGE and node.end != GONE)
        if path.length - before > 2 * PAGE:  # no draft is as long
            path.first_open = path.length // PAGE

    def share_rows(self, source: Node, target: Node, count: int) -> None:
        """Gives a node the rows of the first `count` tokens of another one, as far as they are kept."""
        target.rows = source.rows[: min(count, source.rows_ready)]
        target.rows_ready = len(target.rows)
        for slot in target.rows:
            self._row_refs[slot] += 1
        if target.rows:
            self._with_rows[target] = None

    def truncate(self, node: Node) -> None:
        """Gives back what a node has beyond its tokens."""
        count = len(node.tokens)
        if count < PAGE:
            self._drop_state(node)
        if len(node.rows) > count:
            self._drop_rows(node, count)

    def give_back(self, node: Node) -> None:
        """Gives back all that a node has."""
        self._drop_state(node)
        self._drop_rows(node, 0)

    def drop_some(self, rng: random.Random, share: float) -> None:
        """Gives back states and rows that no path needs, chosen at random. For tests: no bit may differ."""
        starts, rows = self._needed()
        for node in [node for node in self._with_state if node not in starts]:
            if rng.random() < share:
                self._drop_state(node)
        for node in list(self._with_rows):
            if rng.random() < share:
                self._drop_rows(node, rows.get(node, 0))

    def _take_rows(self, node: Node, end: int) -> None:
        if len(node.rows) >= end:
            return
        self._share_with_siblings(node, end)
        missing = end - len(node.rows)
        if len(self._free_rows) < missing:
            self._free_some_rows(missing)
        for _ in range(missing):
            slot = self._free_rows.pop()
            self._row_refs[slot] = 1
            node.rows.append(slot)
        self._with_rows.pop(node, None)
        self._with_rows[node] = None

    def _share_with_siblings(self, node: Node, end: int) -> None:
        """Gives a node the rows of a sibling that begins with the same tokens, so that the branches of a
        search need as many rows however they came to be: that it has room must not depend on the past."""
        assert node.parent is not None
        for sibling in node.parent.children[node.key]:
            kept, most = len(node.rows), min(len(sibling.rows), end)
            if sibling is node or most <= kept or sibling.tokens[kept] != node.tokens[kept]:
                continue
            same = next((at for at in range(most) if sibling.tokens[at] != node.tokens[at]), most)
            for slot in sibling.rows[kept:same]:
                self._row_refs[slot] += 1
                node.rows.append(slot)

    def _take_state(self, node: Node, is_needed: bool) -> None:
        if not self._free_states and not self._free_some_states():
            if is_needed:
                raise NoRoom("every state of the recurrent layers is held")
            return
        node.end = self._free_states.pop()
        self._clock += 1
        self._with_state[node] = self._clock

    def _point(self, path: KVPath, first: int, last: int) -> None:
        lines = path.table[len(path.table) - STATE_LINES :]
        for index in range(first, last + 1):
            node = path.nodes[index]
            lines[:, index] = GONE
            lines[0, index] = node.end
            lines[1 : 1 + len(node.rows), index] = node.rows

    def _drop_state(self, node: Node) -> None:
        if node.end != GONE:
            self._free_states.append(node.end)
            node.end, node.end_ready = GONE, False
            del self._with_state[node]

    def _drop_rows(self, node: Node, count: int) -> None:
        for slot in node.rows[count:]:
            self._row_refs[slot] -= 1
            if not self._row_refs[slot]:
                self._free_rows.append(slot)
        del node.rows[count:]
        node.rows_ready = min(node.rows_ready, count)
        if not node.rows:
            self._with_rows.pop(node, None)

    # ── which go first ─────────────────────────────────────────────────────────────────────────────────────

    def _needed(self) -> tuple[set[Node], dict[Node, int]]:
        """Returns the nodes whose end states some path needs, and of how many tokens of a node one needs the
        rows: what a node has beyond the end of all paths is not needed."""
        starts, rows = set[Node](), dict[Node, int]()
        for path in self._paths:
            starts.update(path.nodes[max(0, path.first_open - 1) : path.length // PAGE])
            for index in range(path.first_open, len(path.nodes)):
                node, end = path.nodes[index], min(PAGE, path.length - index * PAGE)
                rows[node] = max(rows.get(node, 0), end)
        return starts, rows

    def _free_some_rows(self, missing: int) -> None:
        """Gives back the rows that were written the longest ago, until so many slots are free, and a part of
        all rows beyond that."""
        _, needed = self._needed()
        wanted = missing + len(self._row_refs) // 16
        for node in list(self._with_rows):
            if len(self._free_rows) >= wanted:
                break
            self._drop_rows(node, needed.get(node, 0))
        if len(self._free_rows) < missing:
            raise NoRoom("every row of the recurrent layers is held")

    def _free_some_states(self) -> bool:
        """Gives back the states that are worth the least, a part of all. Returns whether there were any."""
        needed, _ = self._needed()
        spare = [node for node in self._with_state if node not in needed]
        spare.sort(key=self._worth)
        for node in spare[: 1 + self.state_count // 16]:
            self._drop_state(node)
            self.states_given_back += 1
        return bool(spare)

    def _worth(self, node: Node) -> float:
        """Returns how much a state is worth: less the older it is, and twice as much for each time that the
        number of its border can be halved."""
        border = node.depth + 1
        level = (border & -border).bit_length() - 1
        if len(node.children) != 1:
            level += _BRANCHING
        return float(1 << level) / (1 + self._clock - self._with_state[node])

    # ── integrity ──────────────────────────────────────────────────────────────────────────────────────────

    def check(self, nodes: Collection[Node]) -> None:
        """Raises if a count is wrong; `nodes` are all that there are."""
        states, refs = list[int](), [0] * self.row_count
        for node in nodes:
            if node.end != GONE:
                states.append(node.end)
                must(len(node.tokens) == PAGE, "only a full node has an end state")
            must(node.end_ready <= (node.end != GONE), "what is ready is kept")
            must(len(node.rows) <= len(node.tokens), "only tokens have rows")
            must(node.rows_ready <= min(len(node.rows), node.ready), "rows that are ready are kept")
            for slot in node.rows:
                refs[slot] += 1
        must(sorted([*states, *self._free_states]) == [*range(self.state_count)], "a state has one place")
        must(refs == self._row_refs, "rows count the nodes that share them")
        free = [slot for slot, count in enumerate(refs) if not count]
        must(sorted(self._free_rows) == free, "a row is free or in a node")
        must(set(self._with_state) == {node for node in nodes if node.end != GONE}, "states are listed")
        must(set(self._with_rows) == {node for node in nodes if node.rows}, "rows are listed")
        for path in self._paths:
            usable = self.usable(path.nodes, path.length)
            must(usable == path.length or bool(path.fresh), "a path can go on")
