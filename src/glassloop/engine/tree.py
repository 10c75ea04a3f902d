"""The KV tree: keys and values of every token sequence that was computed, in pages, each prefix stored once.

A node is one page: up to 32 tokens that follow those of its parent. A branch holds a `KVPath` from the root,
and a fork is one more path through the same nodes. Where two paths part in the middle of a page the later one
gets a copy of it. Nodes that no path holds stay as long as there is room, and the least recently used are
evicted first. So the tree of prefixes, of forks, of beams and of samples is one tree.

Keys and values depend on the adapter that acted on the tokens, so each adapter has a root of its own; so has
each realm, a client that is kept apart from the others (`Request.realm`).

Layers with a sliding window have pages of their own. A page that lies behind the window of every path is
needed again only if a path comes back to it, so it may be given back before its node is evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import PAGE, Int32, pages_for
from glassloop.ops.kv_cache import Pages
from glassloop.ops.memory import check_room, format_bytes

GONE = -1  # a page of a window that was given back
_MANY_ROOTS = 1024  # from which on those without nodes are dropped


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

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.depth, self.key = self.parent.depth + 1, self.tokens[0]


class KVPath:
    """The nodes of one branch, from the root on, held until the path is released."""

    __slots__ = ("adapter", "behind", "fresh", "length", "nodes", "realm", "table")

    def __init__(self, groups: int, adapter: int, realm: str) -> None:
        self.adapter = adapter  # the number of the adapter that its tokens are computed with; 0: none
        self.realm = realm  # only paths of the same realm share nodes
        self.nodes: list[Node] = []
        self.length = 0  # in tokens; the last node may hold more tokens, of other paths
        self.behind = 0  # how many nodes lie wholly behind the widest window
        self.fresh: list[tuple[Node, int]] = []  # nodes that this step computes, each up to which token
        # [groups, pages]; GONE where the path has no node, which no batch can mistake for a page.
        self.table: Int32 = np.full((groups, 8), GONE, np.int32)

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
        groups, width = self.table.shape
        while width < len(pages):
            width *= 2
        if width > self.table.shape[1]:
            self.table = np.full((groups, width), GONE, np.int32)
        self.table[:, : len(pages)] = np.maximum(np.array(pages, np.int32).T, 0)


class KVTree:
    def __init__(self, transformer: Transformer, memory: int) -> None:
        """Allocates pages for keys and values, at most this many bytes for all groups of layers together."""
        self.page_bytes = transformer.page_bytes
        self.capacity = memory // self.page_bytes  # tokens' pages, if no window gives any back
        if self.capacity < 2:
            raise GlassloopError(
                f"kv_memory is {memory} bytes; at least {2 * self.page_bytes} are expected for this model"
            )
        least = f"give less, at least {format_bytes(2 * self.page_bytes)}, or end other programs"
        check_room("kv_memory is", memory, transformer.ops.free_memory(), least)
        self._windows = [spec.window for spec in transformer.cache_specs]
        self._widest = max((window for window in self._windows if window is not None), default=0)
        self.memory = memory
        # All groups take their pages from one pool, which is named once for each.
        self.pages: list[Pages] = transformer.ops.cache(transformer.cache_specs, memory)
        self.free = list(range(self.pages[0].count - 1, -1, -1))
        self.root = Node(None, [], [], 0)  # of what was computed without an adapter
        self.roots = {(0, ""): self.root}  # by adapter and realm
        self._numbers = count(1)
        self._clock = 0
        self._promises = 0  # the last number that stood for a token
        self._lru: list[tuple[int, int, int, Node]] = []  # (used, -depth, number, node); stale ones stay in
        self.paths: set[KVPath] = set()
        self.node_count = 0
        self.held = 0  # nodes that some path goes through
        self.evicted = 0  # nodes, since the start

    # ── paths ──────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, tokens: Sequence[int], limit: int, adapter: int = 0, realm: str = "") -> KVPath:
        """Returns a new path along the longest prefix of the tokens that was computed with this adapter in
        this realm, at most `limit` of them."""
        path = KVPath(len(self.pages), adapter, realm)
        self.paths.add(path)
        found: list[Node] = []
        length = 0
        node = self._root_of(path)
        while length < limit:
            best, shared = None, 0
            children = node.children.get(tokens[length], ())
            # The usual case: a whole page, and no other begins with the same token.
            if (
                len(children) == 1
                and length + PAGE <= limit
                and children[0].ready == PAGE
                and children[0].tokens == tokens[length : length + PAGE]
            ):
                node = children[0]
                found.append(node)
                length += PAGE
                continue
            for child in children:
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

    def extend(self, path: KVPath, tokens: Sequence[int]) -> None:
        """Reserves pages at the end of a path for tokens that the coming forward pass computes.

        If there are not enough, raises NoRoom and leaves the path as it was.
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

    def promise(self, path: KVPath) -> int:
        """Reserves the place of a token that is not known yet at the end of a path. Returns the negative
        number that stands for it and for no other token. `fulfil` replaces it; `cut` takes it back."""
        self._promises -= 1
        offset = path.length % PAGE
        if offset and len(path.nodes[-1].tokens) == offset and not self._widest:
            node = path.nodes[-1]  # the same as `extend` does, for the usual case
            node.tokens.append(self._promises)
            path.length += 1
            path.fresh.append((node, offset + 1))
        else:
            self.extend(path, [self._promises])
        return self._promises

    def fulfil(self, path: KVPath, token: int) -> None:
        """Names the promised token at the end of a path, which is computed."""
        node, offset = path.nodes[-1], (path.length - 1) % PAGE
        node.tokens[offset] = token
        if offset == 0:
            parent = node.parent
            assert parent is not None
            del parent.children[node.key]  # a promise has no siblings of the same key
            node.key = token
            parent.children.setdefault(token, []).append(node)
        self.computed(path)

    def computed(self, path: KVPath) -> None:
        """Notes that the forward pass has run: the tokens of the last extension can be matched now."""
        for node, ready in path.fresh:
            node.ready = max(node.ready, ready)
        path.fresh.clear()

    def cut(self, path: KVPath, length: int) -> None:
        """Shortens a path by tokens of its last extension; no others can be taken back."""
        path.fresh.clear()
        if len(path.nodes) > pages_for(length):
            while len(path.nodes) > pages_for(length):
                self._leave(path)
            path.table[:, len(path.nodes) :] = GONE
        path.length = length
        if path.nodes:
            tail, offset = path.nodes[-1], length - (len(path.nodes) - 1) * PAGE
            # Tokens that only this path has written are not needed any more: their place can be used again.
            if tail.refs == 1 and not tail.children and len(tail.tokens) > offset:
                del tail.tokens[offset:]
                tail.ready = min(tail.ready, offset)

    def fork(self, path: KVPath) -> KVPath:
        twin = KVPath(len(self.pages), path.adapter, path.realm)
        self.paths.add(twin)
        self._enter(twin, path.nodes, path.length)
        return twin

    def scratch(self, path: KVPath) -> KVPath:
        """Returns a fork of a path that `reserve` can lengthen by pages of its own, which no other path can
        match. For tokens whose keys and values are not those of a plain text."""
        twin, offset = self.fork(path), path.length % PAGE
        if offset:
            try:
                shared = twin.nodes[-1]
                node = self._private(shared.depth)
            except NoRoom:
                self.release(twin)
                raise
            for group, (source, target) in enumerate(zip(shared.pages, node.pages, strict=True)):
                self.pages[group].copy(source, target)
            self._leave(twin)
            self._hold(twin, node)
        return twin

    def reserve(self, path: KVPath, length: int) -> None:
        """Gives a path that `scratch` has made pages up to this length, and keeps those that it has. If there
        are not enough, raises NoRoom; what it got stays with the path."""
        while len(path.nodes) < pages_for(length):
            self._hold(path, self._private(len(path.nodes)))
            path.length = len(path.nodes) * PAGE
        path.length = max(path.length, length)

    def release(self, path: KVPath) -> None:
        """Gives up a path. What it computed stays until the room is needed."""
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

    # ── room ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def used_bytes(self) -> int:
        return (self.pages[0].count - len(self.free)) * self.page_bytes // len(self.pages)

    def room_beside(self, tokens: int) -> bool:
        """Returns whether this many more tokens fit beside what is held now."""
        return self.held + pages_for(tokens) < self.capacity

    def room_for(self, tokens: int) -> bool:
        """Returns whether a single branch of this many tokens fits at all."""
        if self._widest == 0:
            return pages_for(tokens) <= self.capacity
        windowed = pages_for(min(tokens, self._widest + PAGE)) + 1
        whole = pages_for(tokens)
        need = sum(whole if window is None else min(whole, windowed) for window in self._windows)
        return need <= self.pages[0].count

    # ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────

    def _root_of(self, path: KVPath) -> Node:
        key = path.adapter, path.realm
        if key not in self.roots:
            self._drop_roots()
            self.roots[key] = Node(None, [], [], 0)
        return self.roots[key]

    def _drop_roots(self) -> None:
        """Drops the roots that have no nodes and no paths, if there are many of them."""
        if len(self.roots) > _MANY_ROOTS:
            used = {(path.adapter, path.realm) for path in self.paths} | {(0, "")}
            self.roots = {key: root for key, root in self.roots.items() if root.children or key in used}

    def forget(self, adapter: int) -> None:
        """Gives back all that was computed with an adapter, which no path has now or will have."""
        nodes = [self.roots.pop(key) for key in list(self.roots) if key[0] == adapter]
        roots = len(nodes)
        for node in nodes:
            for children in node.children.values():
                nodes.extend(children)
        for node in reversed(nodes[roots:]):
            self._remove(node)

    def forget_text(self, tokens: Sequence[int], realm: str = "") -> None:
        """Gives back the pages of a text, from its end on, as far as no path holds them and no other text
        goes on from them: those of one realm, if it is given, else of all."""
        found: list[Node] = []
        parents = [root for (_, own), root in self.roots.items() if not realm or own == realm]
        while parents:
            node = parents.pop()
            start = (node.depth + 1) * PAGE
            for child in node.children.get(tokens[start], ()) if start < len(tokens) else ():
                if child.tokens == list(tokens[start : start + len(child.tokens)]):
                    found.append(child)
                    parents.append(child)
        for node in sorted(found, key=lambda node: -node.depth):
            if not node.refs and not node.children:
                self._remove(node)
                node.tokens.clear()  # the list of what may be evicted still has the node for a while

    def _visible(self, nodes: list[Node], length: int) -> int:
        """Returns how much of a matched prefix can be used: a window needs all pages it looks back on."""
        if self._widest == 0:
            return length
        while length > 0:
            first = max(0, length - self._widest + 1) // PAGE
            gone = [index for index in range(first, pages_for(length)) if GONE in nodes[index].pages]
            if not gone:
                break
            length = gone[0] * PAGE
        return length

    def _enter(self, path: KVPath, nodes: Sequence[Node], length: int) -> None:
        """Gives a path that has no nodes yet those of a prefix of this length."""
        self._clock += 1
        held = nodes[: pages_for(length)]
        for node in held:  # the same as `_hold`, but for the page table, which is written at once
            self.held += node.refs == 0
            node.refs += 1
            node.needed += 1
            node.used = self._clock
        path.nodes.extend(held)
        path.point_all([node.pages for node in held])
        path.length = length
        self._look_back(path, length)

    def _hold(self, path: KVPath, node: Node) -> None:
        path.point(len(path.nodes), node.pages)
        path.nodes.append(node)
        self.held += node.refs == 0
        node.refs += 1
        node.needed += 1
        node.used = self._clock

    def _leave(self, path: KVPath) -> None:
        """Removes the last node from a path."""
        node = path.nodes.pop()
        node.refs -= 1
        self.held -= node.refs == 0
        if len(path.nodes) >= path.behind:
            node.needed -= 1
        else:
            path.behind = len(path.nodes)
        node.used = self._clock
        if node.refs == 0:
            del node.tokens[node.ready :]  # reserved, never computed
        if node.parent is None:
            self._give_back_all(node)  # it is private, so no other path can come back to it
        elif node.tokens:
            self._may_go(node)
        else:
            self._remove(node)

    def _look_back(self, path: KVPath, position: int) -> None:
        """Notes that this path does not need the nodes behind the window of this position any more."""
        if self._widest == 0:
            return
        first = max(0, position - self._widest + 1) // PAGE
        while path.behind < first:
            node = path.nodes[path.behind]
            node.needed -= 1
            node.used = self._clock
            path.behind += 1
            self._may_go(node)

    def _next(self, path: KVPath, tokens: Sequence[int], at: int) -> Node:
        """Returns the node of a path's next page: one that has these tokens, or a new one."""
        parent = path.nodes[-1] if path.nodes else self._root_of(path)
        for child in parent.children.get(tokens[at], ()):
            most = min(len(child.tokens), len(tokens) - at)
            if child.tokens[:most] == list(tokens[at : at + most]) and GONE not in child.pages:
                return child
        return self._add(parent, [tokens[at]])

    def _own(self, path: KVPath, offset: int) -> Node:
        """Gives a path that parts from others within its last page a copy of that page, from `offset` on."""
        shared = path.nodes[-1]
        assert shared.parent is not None
        try:
            node = self._add(shared.parent, shared.tokens[:offset])
        except NoRoom:
            if shared.refs > 1 or shared.children:
                raise
            del shared.tokens[offset:]  # no other path holds them
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

    def _private(self, depth: int) -> Node:
        """Returns a new node for one path, which is not in the tree: it has no parent and no tokens."""
        made = Node(None, [], self._take(), next(self._numbers), depth)
        self.node_count += 1
        return made

    def _take(self) -> list[int]:
        """Takes a free page for each group of layers."""
        while len(self.free) < len(self.pages):
            self._evict()
        return [self.free.pop() for _ in self.pages]

    def _evict(self) -> None:
        """Gives back the least recently used: a node that no path holds, or pages behind every window."""
        while self._lru:
            used, _, _, node = heappop(self._lru)
            if node.used != used or node.parent is None:
                continue
            if not node.refs and not node.children:
                self.evicted += 1
                return self._remove(node)
            if not node.needed and self._give_back_windows(node):
                return None
        raise NoRoom("the KV cache is full")

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
        node.parent = None
        self._give_back_all(node)
        if parent.depth >= 0:  # it is not a root
            self._may_go(parent)

    def _give_back_all(self, node: Node) -> None:
        for group, page in enumerate(node.pages):
            if page != GONE:
                self._give_back(node, group)
        self.node_count -= 1

    def _give_back(self, node: Node, group: int) -> None:
        self.free.append(node.pages[group])
        node.pages[group] = GONE

    def check_integrity(self) -> None:
        """Raises if a count is wrong. Runs in tests, and when the engine is idle."""
        from glassloop.engine.integrity import check

        check(self)


def _common(node: Node, tokens: Sequence[int], start: int, limit: int) -> int:
    """Returns how many computed tokens of a node are equal to those from `start` on."""
    most = min(node.ready, limit - start)
    mine, theirs = node.tokens[:most], tokens[start : start + most]
    if not isinstance(theirs, list):
        theirs = list(theirs)
    if mine == theirs:
        return most
    return next(index for index in range(most) if mine[index] != theirs[index])
