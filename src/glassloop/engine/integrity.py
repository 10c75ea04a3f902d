"""The integrity check of the KV tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from glassloop.engine.kv_nodes import GONE, KVPath, Node, NodePool
from glassloop.ops.batch import PAGE, pages_for


def check_tree(
    pool: NodePool, paths: Collection[KVPath], roots: Mapping[tuple[int, str], Node], held: int
) -> None:
    """Raises unless every count agrees with what it counts, no page is lost and none is used twice. `held` is
    the number of nodes that some path goes through."""
    refs: dict[int, int] = {}
    needed: dict[int, int] = {}
    private: dict[int, Node] = {}  # the nodes of scratch paths
    for path in paths:
        must(len(path.nodes) == pages_for(path.length), "a path has a node for each of its pages")
        behind = path.table[:, len(path.nodes) :]
        must(bool((behind == GONE).all()), "a path's table names no page but its nodes'")
        must(path.behind <= _first_seen(pool, path), "a path needs all pages that its next row sees")
        for index, node in enumerate(path.nodes):
            refs[node.number] = refs.get(node.number, 0) + 1
            if index >= path.behind:
                needed[node.number] = needed.get(node.number, 0) + 1
                must(GONE not in node.pages, "what a path can see has its pages")
                must(
                    path.table[: len(node.pages), index].tolist() == node.pages,
                    "a path's table names its nodes' pages",
                )
            above = path.nodes[index - 1] if index else roots[path.adapter, path.realm]
            if node.parent is None:
                private[node.number] = node
                must(node.refs == 1 and not node.tokens, "a node outside of the tree has one path")
            else:
                must(node.parent is above, "a path follows the tree")
    pages = [*pool.free, *(page for node in private.values() for page in node.pages if page != GONE)]
    count = len(private)
    for node in nodes_of(roots):
        count += 1
        must(node.refs == refs.get(node.number, 0), "refs counts the paths through a node")
        must(node.needed == needed.get(node.number, 0), "needed counts the paths that see a node")
        must(0 < len(node.tokens) <= PAGE and node.key == node.tokens[0], "a node has tokens")
        must(node.ready <= len(node.tokens), "no more is computed than there is")
        must(len(node.tokens) == PAGE or not node.children, "only full nodes have children")
        pages += [page for page in node.pages if page != GONE]
    must(count == pool.count, "every node is counted")
    must(held == len(refs), "held counts the nodes with a path")
    must(sorted(pages) == list(range(pool.page_count)), "every page is free or in one node")


def _first_seen(pool: NodePool, path: KVPath) -> int:
    """Returns the index of the first page that the widest window of a path's next row reaches. It is computed
    from the length alone: `path.behind`, which the tree keeps, is what is checked with it."""
    widest = max((window for window in pool.windows if window is not None), default=path.length + 1)
    return max(0, path.length - widest + 1) // PAGE


def nodes_of(roots: Mapping[tuple[int, str], Node]) -> Iterator[Node]:
    """Yields all nodes of the tree, but for the roots."""
    waiting = list(roots.values())
    while waiting:
        for children in waiting.pop().children.values():
            yield from children
            waiting.extend(children)


def must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"the KV tree is damaged: it does not hold that {what}")
