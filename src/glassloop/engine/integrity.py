"""The integrity check of the KV tree."""

from __future__ import annotations

from collections.abc import Iterator

from glassloop.engine.tree import GONE, KVPath, KVTree, Node
from glassloop.ops.batch import PAGE, pages_for


def check(tree: KVTree) -> None:
    """Raises unless every count agrees with what it counts, no page is lost and none is used twice."""
    refs: dict[int, int] = {}
    needed: dict[int, int] = {}
    private: dict[int, Node] = {}  # the nodes of scratch paths
    for path in tree.paths:
        _must(len(path.nodes) == pages_for(path.length), "a path has a node for each of its pages")
        behind = path.table[:, len(path.nodes) :]
        _must(bool((behind == GONE).all()), "a path's table names no page but its nodes'")
        _must(path.behind <= _first_seen(tree, path), "a path needs all pages that its next row sees")
        for index, node in enumerate(path.nodes):
            refs[node.number] = refs.get(node.number, 0) + 1
            if index >= path.behind:
                needed[node.number] = needed.get(node.number, 0) + 1
                _must(GONE not in node.pages, "what a path can see has its pages")
                _must(path.table[:, index].tolist() == node.pages, "a path's table names its nodes' pages")
            above = path.nodes[index - 1] if index else tree.roots[path.adapter, path.realm]
            if node.parent is None:
                private[node.number] = node
                _must(node.refs == 1 and not node.tokens, "a node outside of the tree has one path")
            else:
                _must(node.parent is above, "a path follows the tree")
    pages = [*tree.free, *(page for node in private.values() for page in node.pages if page != GONE)]
    seen = len(private)
    for node in _nodes(tree):
        seen += 1
        _must(node.refs == refs.get(node.number, 0), "refs counts the paths through a node")
        _must(node.needed == needed.get(node.number, 0), "needed counts the paths that see a node")
        _must(0 < len(node.tokens) <= PAGE and node.key == node.tokens[0], "a node has tokens")
        _must(node.ready <= len(node.tokens), "no more is computed than there is")
        _must(len(node.tokens) == PAGE or not node.children, "only full nodes have children")
        pages += [page for page in node.pages if page != GONE]
    _must(seen == tree.node_count, "every node is counted")
    _must(tree.held == len(refs), "held counts the nodes with a path")
    _must(sorted(pages) == list(range(tree.pages[0].count)), "every page is free or in one node")
    pools = {id(pool): pool.count * pool.page_bytes for pool in tree.pages}
    _must(sum(pools.values()) <= tree.memory, "all pages fit into the memory")


def _first_seen(tree: KVTree, path: KVPath) -> int:
    """Returns the index of the first page that the widest window of a path's next row reaches. It is computed
    from the length alone: `path.behind`, which the tree keeps, is what is checked with it."""
    widest = max((window for window in tree._windows if window is not None), default=path.length + 1)
    return max(0, path.length - widest + 1) // PAGE


def _nodes(tree: KVTree) -> Iterator[Node]:
    waiting = list(tree.roots.values())
    while waiting:
        for children in waiting.pop().children.values():
            yield from children
            waiting.extend(children)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"the KV tree is damaged: it does not hold that {what}")
