"""The nodes of the KV tree and their pages: where they come from, and which are given back first.

A node is one page of tokens. Nodes that no path holds stay as long as there is room; the least recently used
are evicted first. Which paths go through which nodes is the affair of the tree (engine/tree.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from glassloop.errors import GlassloopError
from glassloop.ops.batch import Int32

GONE = -1  # a page of a window that was given back


class NoRoom(GlassloopError):
    """Every page is held by some path."""


@dataclass(slots=True, eq=False)
class Node:
    """One page of tokens, with its keys and values in each group of layers."""

    parent: Node | None  # None: the root, a node that is no longer in the tree, or one of a scratch path
    tokens: list[int]
    pages: list[int]  # for each group of layers
    number: int  # orders nodes of equal use and depth in the heap
    depth: int = -1  # its first position is PAGE * depth
    key: int = -1  # its first token, the key among its parent's children
    ready: int = 0  # how many tokens are computed; for the rest there is room
    children: dict[int, list[Node]] = field(default_factory=dict)  # only a full node has any
    refs: int = 0  # paths through it
    needed: int = 0  # paths that can still see it through a window
    used: int = 0  # when a path last entered or left it
    # Of recurrent layers (engine/state_slots.py): the slot of the state after its last token, those of the
    # rows of its first tokens, and how many of these have been computed.
    end: int = GONE
    end_ready: bool = False
    rows: list[int] = field(default_factory=list)
    rows_ready: int = 0

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.depth, self.key = self.parent.depth + 1, self.tokens[0]


class KVPath:
    """The nodes of one branch, from the root on, held until the path is released."""

    __slots__ = ("adapter", "behind", "first_open", "fresh", "length", "nodes", "realm", "table")

    def __init__(self, lines: int, adapter: int, realm: str) -> None:
        self.adapter = adapter  # the number of the adapter that its tokens are computed with; 0: none
        self.realm = realm  # only paths of the same realm share nodes
        self.nodes: list[Node] = []
        self.length = 0  # in tokens; the last node may hold more tokens, of other paths
        self.behind = 0  # how many nodes lie wholly behind the widest window
        self.first_open = 0  # the first node whose rows of recurrent layers it needs
        self.fresh: list[tuple[Node, int]] = []  # (node, end): this step computes the tokens before `end`
        # [lines, pages]; GONE where the path has no node, which no batch can mistake for a page. The first
        # lines are those of the groups of layers; recurrent layers have theirs after them.
        self.table: Int32 = np.full((lines, 8), GONE, np.int32)

    def point(self, index: int, pages: Sequence[int]) -> None:
        """Enters the pages of the node at this index into the page table."""
        if index == self.table.shape[1]:
            self.table = np.concatenate([self.table, np.full_like(self.table, GONE)], axis=1)
        for group, page in enumerate(pages):
            self.table[group, index] = max(page, 0)

    def point_all(self, pages: Sequence[Sequence[int]]) -> None:
        """Enters the pages of the first nodes into the page table."""
        if not pages:
            return
        lines, width = self.table.shape
        while width < len(pages):
            width *= 2
        if width > self.table.shape[1]:
            self.table = np.full((lines, width), GONE, np.int32)
        self.table[: len(pages[0]), : len(pages)] = np.maximum(np.array(pages, np.int32).T, 0)


class NodePool:
    """All nodes of a tree, and the pages that are free."""

    def __init__(self, pages: int, windows: Sequence[int | None]) -> None:
        """`pages` is the number of pages; `windows` has the sliding window of each group of layers."""
        self.page_count = pages
        self.windows = windows
        self.widest = max((window for window in windows if window is not None), default=0)
        self.free = list(range(pages - 1, -1, -1))
        self.count = 0  # nodes that have pages
        self.evicted = 0  # nodes, since the start
        self.give_back_slots: Callable[[Node], None] | None = None  # of recurrent layers, if there are any
        self._numbers = count(1)
        self._lru: list[tuple[int, int, int, Node]] = []  # (used, -depth, number, node); stale ones stay in

    def add(self, parent: Node, tokens: list[int]) -> Node:
        """Returns a new child of a node."""
        node = Node(parent, tokens, self._take_pages(), next(self._numbers))
        parent.children.setdefault(node.key, []).append(node)
        self.count += 1
        return node

    def add_private(self, depth: int) -> Node:
        """Returns a new node for one path, which is not in the tree: it has no parent and no tokens."""
        node = Node(None, [], self._take_pages(), next(self._numbers), depth)
        self.count += 1
        return node

    def remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        siblings = parent.children[node.key]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.key]
        node.parent = None
        self.give_back(node)
        if parent.depth >= 0:  # it is not a root
            self.may_go(parent)

    def give_back(self, node: Node) -> None:
        """Frees all pages of a node, and its slots."""
        if self.give_back_slots is not None:
            self.give_back_slots(node)
        for group, page in enumerate(node.pages):
            if page != GONE:
                self._free(node, group)
        self.count -= 1

    def may_go(self, node: Node) -> None:
        """Notes a node whose pages may be given to others, if no path needs them."""
        idle = not node.refs and not node.children
        if idle or (self.widest and not node.needed):
            heappush(self._lru, (node.used, -node.depth, node.number, node))

    def tidy(self) -> None:
        """Drops the stale entries of the list of what may be evicted, if there are many."""
        if len(self._lru) > 4 * self.count + 1000:
            self._lru = [entry for entry in self._lru if entry[3].used == entry[0] and entry[3].parent]
            heapify(self._lru)

    def _take_pages(self) -> list[int]:
        """Takes a free page for each group of layers."""
        while len(self.free) < len(self.windows):
            self._evict()
        return [self.free.pop() for _ in self.windows]

    def _evict(self) -> None:
        """Gives back the least recently used: a node that no path holds, or pages behind every window."""
        while self._lru:
            used, _, _, node = heappop(self._lru)
            if node.used != used or node.parent is None:
                continue
            if not node.refs and not node.children:
                self.evicted += 1
                return self.remove(node)
            if not node.needed and self._free_windows(node):
                return None
        raise NoRoom("the KV cache is full")

    def _free_windows(self, node: Node) -> bool:
        """Frees the pages of the layers with a window. Returns whether there were any."""
        groups = [group for group, window in enumerate(self.windows) if window is not None]
        freed = [group for group in groups if node.pages[group] != GONE]
        for group in freed:
            self._free(node, group)
        return bool(freed)

    def _free(self, node: Node, group: int) -> None:
        self.free.append(node.pages[group])
        node.pages[group] = GONE
