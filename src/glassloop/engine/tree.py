"""The KV tree: keys and values of every token sequence that was computed, in pages, each prefix stored once.

A node is one page: up to 32 tokens that follow those of its parent. A branch holds a `KVPath` from the root,
and a fork is one more path through the same nodes. Where two paths part in the middle of a page the later one
gets a copy of it. Nodes that no path holds stay as long as there is room, and the least recently used are
evicted first. So the tree of prefixes, of forks, of beams and of samples is one tree.

Keys and values depend on the adapter that acted on the tokens, so each adapter has a root of its own; so has
each realm, a client that is kept apart from the others (`Request.realm`).

Recurrent layers keep states at the ends of pages and rows of single tokens, in slots that nodes have beside
their pages (engine/state_slots.py). Where some are missing, a path begins a little earlier.

Layers with a sliding window have pages of their own. A page that lies behind the window of every path is
needed again only if a path comes back to it, so it may be given back before its node is evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.engine.call_plan import PageCopy
from glassloop.engine.integrity import check_tree, must, nodes_of
from glassloop.engine.kv_nodes import GONE, KVPath, Node, NodePool, NoRoom
from glassloop.engine.state_slots import StateSlots
from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import PAGE, pages_for
from glassloop.ops.kv_cache import Pages
from glassloop.ops.memory import check_room, format_bytes
from glassloop.ops.state_cache import lines_of

_MANY_ROOTS = 1024  # from which on those without nodes are dropped


class KVTree:
    def __init__(self, transformer: Transformer, memory: int) -> None:
        """Allocates pages for keys and values, at most this many bytes for all groups of layers together."""
        self.page_bytes = transformer.page_bytes
        plan = transformer.cache_plan
        least = plan.least(transformer.ops)
        if memory < least:
            raise GlassloopError(f"kv_memory is {memory} bytes; at least {least} are expected for this model")
        remedy = f"give less, at least {format_bytes(least)}, or end other programs"
        check_room("kv_memory is", memory, transformer.ops.free_memory(), remedy)
        self.memory = memory
        self.paths: set[KVPath] = set()
        states, rows = plan.slot_counts(memory)
        for_pages = memory - plan.slot_bytes(states, rows)
        self.capacity = for_pages // self.page_bytes  # tokens' pages, if no window gives any back
        # All groups take their pages from one pool, which is named once for each.
        self.pages: list[Pages] = transformer.ops.cache(plan.specs, for_pages)
        self._nodes = NodePool(self.pages[0].count, [spec.window for spec in plan.specs])
        self._widest = self._nodes.widest
        self.slots: StateSlots | None = None  # of recurrent layers, if there are any
        if plan.states is not None:
            self.pages.append(transformer.ops.states(plan.states, states, rows))
            self.slots = StateSlots(states, rows, self.paths)
            self._nodes.give_back_slots = self.slots.give_back
        self._lines = lines_of(self.pages)
        self.root = Node(None, [], [], 0)  # of what was computed without an adapter
        self.roots = {(0, ""): self.root}  # by adapter and realm
        self._slot_bytes = plan.slot_bytes
        self._clock = 0
        self._promises = 0  # the last number that stood for a token
        self._copies: list[PageCopy] = []  # that are to be made before the next rows are computed
        self.held = 0  # nodes that some path goes through

    # ── paths ──────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, tokens: Sequence[int], limit: int, adapter: int = 0, realm: str = "") -> KVPath:
        """Returns a new path along the longest prefix of the tokens that was computed with this adapter in
        this realm, at most `limit` of them."""
        path = KVPath(self._lines, adapter, realm)
        self.paths.add(path)
        matched: list[Node] = []
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
                matched.append(node)
                length += PAGE
                continue
            for child in children:
                same = _common(child, tokens, length, limit)
                if same > shared or (same == shared and best is not None and GONE in best.pages):
                    best, shared = child, same
            if best is None:
                break
            matched.append(best)
            length += shared
            if shared < PAGE:
                break
            node = best
        self._enter(path, matched, self._visible(matched, length))
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
                present = node.tokens[offset : offset + most]
                if present != list(tokens[at : at + len(present)]):
                    node = self._part(path, offset, tokens[at : at + most])
                    present = node.tokens[offset : offset + most]
                node.tokens.extend(tokens[at + len(present) : at + most])
                if node.ready < offset + most or self.slots is not None:
                    path.fresh.append((node, offset + most))
                path.length += most
                at += most
            if self.slots is not None:
                self.slots.reserve(path, before)
        except NoRoom:
            self.cut(path, before)
            raise
        self._look_back(path, before)

    def promise(self, path: KVPath) -> int:
        """Reserves the place of a token that is not known yet at the end of a path. Returns the negative
        number that stands for it and for no other token. `fulfil` replaces it; `cut` takes it back."""
        self._promises -= 1
        offset = path.length % PAGE
        if offset and len(path.nodes[-1].tokens) == offset and not self._widest and self.slots is None:
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
        if self.slots is not None:
            self.slots.computed(path)
        path.fresh.clear()

    def cut(self, path: KVPath, length: int) -> None:
        """Shortens a path by tokens of its last extension; no others can be taken back. Where recurrent
        layers do not keep what they need to go on there, it becomes shorter than that."""
        path.fresh.clear()
        if self.slots is not None:
            length = self.slots.usable(path.nodes, length)
            path.first_open = min(path.first_open, length // PAGE)
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
                if self.slots is not None:
                    self.slots.truncate(tail)

    def fork(self, path: KVPath) -> KVPath:
        twin = KVPath(self._lines, path.adapter, path.realm)
        self.paths.add(twin)
        self._enter(twin, path.nodes, path.length)
        return twin

    def scratch(self, path: KVPath) -> KVPath:
        """Returns a fork of a path that `reserve` can lengthen by pages of its own, which no other path can
        match. For tokens whose keys and values are not those of a plain text: recurrent layers have no such
        rows."""
        assert self.slots is None, "tasks with such rows are refused"
        twin, offset = self.fork(path), path.length % PAGE
        if offset:
            try:
                shared = twin.nodes[-1]
                node = self._nodes.add_private(shared.depth)
            except NoRoom:
                self.release(twin)
                raise
            self._copy(shared, node)
            self._leave(twin)
            self._hold(twin, node)
        return twin

    def reserve(self, path: KVPath, length: int) -> None:
        """Gives a path that `scratch` has made pages up to this length, and keeps those that it has. If there
        are not enough, raises NoRoom; what it got stays with the path."""
        while len(path.nodes) < pages_for(length):
            self._hold(path, self._nodes.add_private(len(path.nodes)))
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
        self._nodes.tidy()

    def take_copies(self) -> list[PageCopy]:
        """Returns the copies of pages that are to be made, in this order, before the rows that were planned
        are computed."""
        copies, self._copies = self._copies, []
        return copies

    def _copy(self, source: Node, target: Node) -> None:
        pairs = zip(source.pages, target.pages, strict=True)
        self._copies += [PageCopy(group, *pair) for group, pair in enumerate(pairs)]

    # ── room ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def node_count(self) -> int:
        return self._nodes.count

    @property
    def evicted(self) -> int:
        """Nodes that were evicted since the start."""
        return self._nodes.evicted

    @property
    def used_bytes(self) -> int:
        used = self._nodes.page_count - len(self._nodes.free)
        in_pages = used * self.page_bytes // len(self._nodes.windows)
        if self.slots is None:
            return in_pages
        return in_pages + self._slot_bytes(self.slots.states_kept, self.slots.rows_kept)

    def room_beside(self, tokens: int) -> bool:
        """Returns whether this many more tokens fit beside what is held now."""
        if self.slots is not None and not self.slots.has_room(len(self.paths)):
            return False
        return self.held + pages_for(tokens) < self.capacity

    def room_for(self, tokens: int) -> bool:
        """Returns whether a single branch of this many tokens fits at all."""
        if self._widest == 0:
            return pages_for(tokens) <= self.capacity
        windowed = pages_for(min(tokens, self._widest + PAGE)) + 1
        whole = pages_for(tokens)
        need = sum(whole if window is None else min(whole, windowed) for window in self._nodes.windows)
        return need <= self._nodes.page_count

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
            self._nodes.remove(node)

    def forget_text(self, tokens: Sequence[int], realm: str = "") -> None:
        """Gives back the pages of a text, from its end on, as far as no path holds them and no other text
        goes on from them: those of one realm, if it is given, else of all."""
        text_nodes: list[Node] = []
        parents = [root for (_, root_realm), root in self.roots.items() if not realm or root_realm == realm]
        while parents:
            node = parents.pop()
            start = (node.depth + 1) * PAGE
            for child in node.children.get(tokens[start], ()) if start < len(tokens) else ():
                if child.tokens == list(tokens[start : start + len(child.tokens)]):
                    text_nodes.append(child)
                    parents.append(child)
        for node in sorted(text_nodes, key=lambda node: -node.depth):
            if not node.refs and not node.children:
                self._nodes.remove(node)
                node.tokens.clear()  # the list of what may be evicted still has the node for a while

    def _visible(self, nodes: list[Node], length: int) -> int:
        """Returns how much of a matched prefix can be used: a window needs all pages it looks back on."""
        if self._widest == 0:
            return length if self.slots is None else self.slots.usable(nodes, length)
        while length > 0:
            if self.slots is not None:
                length = self.slots.usable(nodes, length)
            first = max(0, length - self._widest + 1) // PAGE
            gone = [index for index in range(first, pages_for(length)) if GONE in nodes[index].pages]
            if not gone:
                break
            length = gone[0] * PAGE
        return length

    def _enter(self, path: KVPath, nodes: Sequence[Node], length: int) -> None:
        """Attaches the nodes of the first `length` tokens to an empty path."""
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
        if self.slots is not None:
            self.slots.enter(path)
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
            if self.slots is not None:
                self.slots.truncate(node)
        if node.parent is None:
            self._nodes.give_back(node)  # it is private, so no other path can come back to it
        elif node.tokens:
            self._nodes.may_go(node)
        else:
            self._nodes.remove(node)

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
            self._nodes.may_go(node)

    def _next(self, path: KVPath, tokens: Sequence[int], at: int) -> Node:
        """Returns the node of a path's next page: one that has these tokens, or a new one."""
        parent = path.nodes[-1] if path.nodes else self._root_of(path)
        for child in parent.children.get(tokens[at], ()):
            most = min(len(child.tokens), len(tokens) - at)
            if child.tokens[:most] == list(tokens[at : at + most]) and GONE not in child.pages:
                return child
        return self._nodes.add(parent, [tokens[at]])

    def _part(self, path: KVPath, offset: int, tokens: Sequence[int]) -> Node:
        """Gives a path that parts from others within its last page, from `offset` on, a page that goes on
        with these tokens: one that another path has parted into already, or a copy."""
        shared = path.nodes[-1]
        assert shared.parent is not None
        for sibling in shared.parent.children.get(shared.key, ()):
            keeps_rows = self.slots is None or sibling.rows_ready >= offset
            if keeps_rows and _goes_on(sibling, shared, offset, tokens):
                self._leave(path)
                self._hold(path, sibling)
                return sibling
        try:
            node = self._nodes.add(shared.parent, shared.tokens[:offset])
        except NoRoom:
            if shared.refs > 1 or shared.children:
                raise
            del shared.tokens[offset:]  # no other path holds them
            shared.ready = offset
            if self.slots is not None:
                self.slots.truncate(shared)
            return shared
        self._copy(shared, node)
        if self.slots is not None:
            self.slots.share_rows(shared, node, offset)
        node.ready = offset
        self._leave(path)
        self._hold(path, node)
        return node

    def check_integrity(self) -> None:
        """Raises if a count is wrong. Runs in tests, and when the engine is idle."""
        check_tree(self._nodes, self.paths, self.roots, self.held)
        groups = self.pages[: len(self._nodes.windows)]
        pools = {id(pool): pool.count * pool.page_bytes for pool in groups}
        slots = 0
        if self.slots is not None:
            self.slots.check(list(nodes_of(self.roots)))
            slots = self._slot_bytes(self.slots.state_count, self.slots.row_count)
        must(sum(pools.values()) + slots <= self.memory, "all pages fit into the memory")


def _goes_on(sibling: Node, shared: Node, offset: int, tokens: Sequence[int]) -> bool:
    """Returns whether a sibling has the first `offset` tokens of a page, computed, and then only the first of
    these tokens."""
    if len(sibling.tokens) <= offset or sibling.tokens[offset] != tokens[0]:
        return False
    if sibling.ready < offset or sibling.tokens[:offset] != shared.tokens[:offset] or GONE in sibling.pages:
        return False
    further = sibling.tokens[offset : offset + len(tokens)]
    return further == list(tokens[: len(further)])


def _common(node: Node, tokens: Sequence[int], start: int, limit: int) -> int:
    """Returns how many computed tokens of a node are equal to those from `start` on."""
    most = min(node.ready, limit - start)
    mine, theirs = node.tokens[:most], tokens[start : start + most]
    if not isinstance(theirs, list):
        theirs = list(theirs)
    if mine == theirs:
        return most
    return next(index for index in range(most) if mine[index] != theirs[index])
