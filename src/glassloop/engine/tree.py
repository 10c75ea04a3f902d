"""The KV tree: keys and values of every token sequence that was computed, in pages, each prefix stored once.

A node is one page: up to 32 tokens that follow those of its parent. A branch holds a `Path` from the root,
and a fork is one more path through the same nodes. Where two paths part in the middle of a page the later one
gets a copy of it. Nodes that no path holds stay as long as there is room, and the least recently used go
first. So the tree of prefixes, of forks, of beams and of samples is one tree.

Layers with a sliding window have pages of their own. One that lies behind the window of every path is worth
keeping only for somebody who comes back to it, so it may go before its node does.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import PAGE, Int32, pages_for
from glassloop.ops.kv_cache import Pages

GONE = -1  # a page of a window that was given back


class NoRoom(GlassloopError):
    """Every page is held by somebody."""


class Node:
    __slots__ = (
        "children",
        "depth",
        "key",
        "needed",
        "number",
        "pages",
        "parent",
        "ready",
        "refs",
        "tokens",
        "used",
    )

    def __init__(self, parent: Node | None, tokens: list[int], pages: list[int], number: int) -> None:
        self.parent = parent  # None: the root, or a node that is no longer in the tree
        self.depth: int = (
            parent.depth + 1 if parent else -1
        )  # its tokens have the positions from PAGE * depth on
        self.key = tokens[0] if tokens else -1  # under which its parent finds it
        self.tokens = tokens
        self.ready = 0  # how many of them are computed; for the rest there is room
        self.pages = pages  # for each group of layers
        self.children: dict[int, list[Node]] = {}  # by their first token; only a full node has any
        self.refs = 0  # paths through it
        self.needed = 0  # paths that can still see it through a window
        self.used = 0
        self.number = number  # ties of the heap


class Path:
    """One branch's way through the tree, held until it is released."""

    __slots__ = ("behind", "fresh", "length", "nodes", "table")

    def __init__(self, groups: int) -> None:
        self.nodes: list[Node] = []
        self.length = 0  # tokens; the last node may hold more, of others
        self.behind = 0  # nodes that lie wholly behind the widest window
        self.fresh: list[tuple[Node, int]] = []  # how far this step computes which nodes
        # [groups, pages]; GONE where the path has no node, which no batch can mistake for a page.
        self.table: Int32 = np.full((groups, 8), GONE, np.int32)

    def point(self, index: int, pages: Sequence[int]) -> None:
        if index == self.table.shape[1]:
            self.table = np.concatenate([self.table, np.full_like(self.table, GONE)], axis=1)
        for group, page in enumerate(pages):
            self.table[group, index] = max(page, 0)


class KVTree:
    def __init__(self, transformer: Transformer, memory: int) -> None:
        """Allocates pages for keys and values, at most so many bytes for all groups of layers together."""
        self.page_bytes = transformer.page_bytes
        self.capacity = memory // self.page_bytes  # tokens' pages, if no window gives any back
        if self.capacity < 2:
            raise GlassloopError(
                f"kv_memory is {memory} bytes; at least {2 * self.page_bytes} are expected for this model"
            )
        self._windows = [spec.window for spec in transformer.cache_specs]
        self._widest = max((window for window in self._windows if window is not None), default=0)
        self.memory = memory
        # All groups take their pages from one pool, which is named once for each.
        self.pages: list[Pages] = transformer.ops.cache(transformer.cache_specs, memory)
        self.free = list(range(self.pages[0].count - 1, -1, -1))
        self.root = Node(None, [], [], 0)
        self._numbers = count(1)
        self._clock = 0
        self._lru: list[tuple[int, int, int, Node]] = []  # (used, -depth, number, node); stale ones stay in
        self.paths: set[Path] = set()
        self.node_count = 0
        self.held = 0  # nodes that some path goes through
        self.evicted = 0  # nodes, since the start

    # ── what a branch does ─────────────────────────────────────────────────────────────────────────────────

    def match(self, tokens: Sequence[int], limit: int) -> Path:
        """The longest computed prefix, at most `limit` tokens of it, held from now on."""
        path = Path(len(self.pages))
        self.paths.add(path)
        found: list[Node] = []
        length = 0
        node = self.root
        while length < limit:
            best, shared = None, 0
            for child in node.children.get(tokens[length], ()):
                same = _common(child, tokens, length, limit)
                if same > shared or (same == shared and best is not None and GONE in best.pages):
                    best, shared = child, same
            if best is None:
                break
            found.append(best)
            length += shared
            if shared < PAGE:
                break
            node = best
        self._enter(path, found, self._visible(found, length))
        return path

    def extend(self, path: Path, tokens: Sequence[int]) -> None:
        """Make room behind a path for tokens that the coming forward pass computes.

        All or nothing: NoRoom leaves the path as it was.
        """
        before = path.length
        at = 0
        try:
            while at < len(tokens):
                offset = path.length % PAGE
                if offset == 0:
                    node = self._next(path, tokens, at)
                    self._hold(path, node)
                else:
                    node = path.nodes[-1]
                most = min(PAGE - offset, len(tokens) - at)
                known = node.tokens[offset : offset + most]
                if known != list(tokens[at : at + len(known)]):
                    node = self._own(path, offset)
                    known = []
                node.tokens.extend(tokens[at + len(known) : at + most])
                if node.ready < offset + most:
                    path.fresh.append((node, offset + most))
                path.length += most
                at += most
        except NoRoom:
            self.cut(path, before)
            raise
        self._look_back(path, before)

    def computed(self, path: Path) -> None:
        """The forward pass has run: what was made room for is there now."""
        for node, ready in path.fresh:
            node.ready = max(node.ready, ready)
        path.fresh.clear()

    def cut(self, path: Path, length: int) -> None:
        """Take back the end of a path: of what the last extension added, and no more."""
        path.fresh.clear()
        if len(path.nodes) > pages_for(length):
            while len(path.nodes) > pages_for(length):
                self._leave(path)
            path.table[:, len(path.nodes) :] = GONE
        path.length = length
        if path.nodes:
            tail, offset = path.nodes[-1], length - (len(path.nodes) - 1) * PAGE
            # What only this path has written, nobody will miss: the place can be used again.
            if tail.refs == 1 and not tail.children and len(tail.tokens) > offset:
                del tail.tokens[offset:]
                tail.ready = min(tail.ready, offset)

    def fork(self, path: Path) -> Path:
        twin = Path(len(self.pages))
        self.paths.add(twin)
        self._enter(twin, path.nodes, path.length)
        return twin

    def release(self, path: Path) -> None:
        """Give it up. What it computed stays, until the room is needed."""
        self._clock += 1
        path.fresh.clear()
        while path.nodes:
            self._leave(path)
        path.table[:] = GONE
        path.length = 0
        self.paths.discard(path)
        if len(self._lru) > 4 * self.node_count + 1000:
            self._lru = [entry for entry in self._lru if entry[3].used == entry[0] and entry[3].parent]
            heapify(self._lru)

    # ── what there is ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def used_bytes(self) -> int:
        return (self.pages[0].count - len(self.free)) * self.pages[0].page_bytes

    def room_beside(self, tokens: int) -> bool:
        """Whether so many more tokens fit beside what is held now."""
        return self.held + pages_for(tokens) < self.capacity

    def room_for(self, tokens: int) -> bool:
        """Whether a single branch of so many tokens fits at all."""
        if self._widest == 0:
            return pages_for(tokens) <= self.capacity
        windowed = pages_for(min(tokens, self._widest + PAGE)) + 1
        whole = pages_for(tokens)
        need = sum(whole if window is None else min(whole, windowed) for window in self._windows)
        return need <= self.pages[0].count

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────

    def _visible(self, nodes: list[Node], length: int) -> int:
        """How much of a matched prefix can be gone on from: a window must find all that it looks back on."""
        if self._widest == 0:
            return length
        while length > 0:
            first = max(0, length - self._widest + 1) // PAGE
            gone = [index for index in range(first, pages_for(length)) if GONE in nodes[index].pages]
            if not gone:
                break
            length = gone[0] * PAGE
        return length

    def _enter(self, path: Path, nodes: Sequence[Node], length: int) -> None:
        self._clock += 1
        for node in nodes[: pages_for(length)]:
            self._hold(path, node)
        path.length = length
        self._look_back(path, length)

    def _hold(self, path: Path, node: Node) -> None:
        path.point(len(path.nodes), node.pages)
        path.nodes.append(node)
        self.held += node.refs == 0
        node.refs += 1
        node.needed += 1
        node.used = self._clock

    def _leave(self, path: Path) -> None:
        """Let go of a path's last node."""
        node = path.nodes.pop()
        node.refs -= 1
        self.held -= node.refs == 0
        if len(path.nodes) >= path.behind:
            node.needed -= 1
        else:
            path.behind = len(path.nodes)
        node.used = self._clock
        if node.refs == 0:
            del node.tokens[node.ready :]  # made room for, never computed
        if node.tokens:
            self._may_go(node)
        else:
            self._remove(node)

    def _look_back(self, path: Path, position: int) -> None:
        """Nodes behind the window of this position are not needed by this path any more."""
        if self._widest == 0:
            return
        first = max(0, position - self._widest + 1) // PAGE
        while path.behind < first:
            node = path.nodes[path.behind]
            node.needed -= 1
            node.used = self._clock
            path.behind += 1
            self._may_go(node)

    def _next(self, path: Path, tokens: Sequence[int], at: int) -> Node:
        """The node of a path's next page: one that has these tokens, or a new one."""
        parent = path.nodes[-1] if path.nodes else self.root
        for child in parent.children.get(tokens[at], ()):
            most = min(len(child.tokens), len(tokens) - at)
            if child.tokens[:most] == list(tokens[at : at + most]) and GONE not in child.pages:
                return child
        return self._add(parent, [tokens[at]])

    def _own(self, path: Path, offset: int) -> Node:
        """A path parts from others within its last page: from here on it has a copy."""
        shared = path.nodes[-1]
        assert shared.parent is not None
        try:
            node = self._add(shared.parent, shared.tokens[:offset])
        except NoRoom:
            if shared.refs > 1 or shared.children:
                raise
            del shared.tokens[offset:]  # the only others are sequences that nobody holds
            shared.ready = offset
            return shared
        for group, (source, target) in enumerate(zip(shared.pages, node.pages, strict=True)):
            self.pages[group].copy(source, target)
        node.ready = offset
        self._leave(path)
        self._hold(path, node)
        return node

    def _add(self, parent: Node, tokens: list[int]) -> Node:
        node = Node(parent, tokens, self._take(), next(self._numbers))
        parent.children.setdefault(node.key, []).append(node)
        self.node_count += 1
        return node

    def _take(self) -> list[int]:
        """A page for each group of layers."""
        while len(self.free) < len(self.pages):
            self._evict()
        return [self.free.pop() for _ in self.pages]

    def _evict(self) -> None:
        """Give back the least recently used: a node that nobody holds, or pages behind every window."""
        while self._lru:
            used, _, _, node = heappop(self._lru)
            if node.used != used or node.parent is None:
                continue
            if not node.refs and not node.children:
                self.evicted += 1
                return self._remove(node)
            if not node.needed and self._give_back_windows(node):
                return None
        raise NoRoom("the memory for keys and values is full")

    def _may_go(self, node: Node) -> None:
        idle = not node.refs and not node.children
        if idle or (self._widest and not node.needed):
            heappush(self._lru, (node.used, -node.depth, node.number, node))

    def _give_back_windows(self, node: Node) -> bool:
        given = False
        for group, window in enumerate(self._windows):
            if window is not None and node.pages[group] != GONE:
                self._give_back(node, group)
                given = True
        return given

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        siblings = parent.children[node.key]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.key]
        for group, page in enumerate(node.pages):
            if page != GONE:
                self._give_back(node, group)
        node.parent = None
        self.node_count -= 1
        if parent is not self.root:
            self._may_go(parent)

    def _give_back(self, node: Node, group: int) -> None:
        self.free.append(node.pages[group])
        node.pages[group] = GONE

    def check_integrity(self) -> None:
        """For tests, and when idle."""
        from glassloop.engine.integrity import check

        check(self)


def _common(node: Node, tokens: Sequence[int], start: int, limit: int) -> int:
    """How many computed tokens of a node are those from `start` on."""
    most = min(node.ready, limit - start)
    mine, theirs = node.tokens[:most], list(tokens[start : start + most])
    if mine == theirs:
        return most
    return next(index for index in range(most) if mine[index] != theirs[index])
