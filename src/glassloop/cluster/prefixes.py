"""Digests of prefixes: each names all token ids from the beginning up to the end of a page. So a replica can
say in a few bytes what its KV tree holds, and a router can find the longest prefix of a request in that.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from heapq import nlargest

from glassloop.engine.kv_nodes import Node
from glassloop.engine.tree import KVTree
from glassloop.ops.batch import PAGE

_BYTES = 8  # of a digest; a wrong match would only send a request to another replica
MOST = 4096  # digests in a report, those that were used last


def _first(space: str) -> bytes:
    """Returns the digest of the empty prefix."""
    return blake2b(space.encode(), digest_size=_BYTES).digest() if space else b""


def extended(digest: bytes, page: Sequence[int]) -> bytes:
    """Returns the digest of a prefix that is one page longer."""
    return blake2b(array("i", page).tobytes(), digest_size=_BYTES, key=digest or b"glassloop").digest()


def digests(ids: Sequence[int], space: str = "") -> list[bytes]:
    """Returns the digest of every prefix of whole pages, the shortest first. Keys and values depend on the
    adapter that acted on the tokens, named by its SHA-256, and on the realm, and so does the digest
    (`Route.space`)."""
    found, digest = [], _first(space)
    for start in range(0, len(ids) - PAGE + 1, PAGE):
        digest = extended(digest, ids[start : start + PAGE])
        found.append(digest)
    return found


def cached_tokens(wanted: Sequence[bytes], known: Collection[bytes]) -> int:
    """Returns how many tokens the longest known prefix has."""
    pages = 0
    for digest in wanted:
        if digest not in known:
            break
        pages += 1
    return pages * PAGE


def summary(
    tree: KVTree, known: dict[Node, bytes], adapters: Mapping[int, str] | None = None
) -> frozenset[bytes]:
    """Returns the digests of the prefixes that a tree holds, of many those that were used last. `known` keeps
    digests from one call to the next; `adapters` has the SHA-256 of each by its number. For the engine's
    thread."""
    found: dict[Node, bytes] = {}
    hashes = {0: "", **(adapters or {})}
    queue = [
        (root, _first(hashes[number] + realm))
        for (number, realm), root in tree.roots.items()
        if number in hashes
    ]
    while queue:
        node, digest = queue.pop()
        for child in [each for siblings in node.children.values() for each in siblings]:
            if child.ready < PAGE:
                continue
            own = known.get(child) or extended(digest, child.tokens)
            found[child] = own
            queue.append((child, own))
    known.clear()
    # Only the last page of a branch that is being computed can still change.
    known.update((node, own) for node, own in found.items() if node.children or not node.refs)
    if len(found) <= MOST:
        return frozenset(found.values())
    return frozenset(found[node] for node in nlargest(MOST, found, key=lambda node: node.used))
