"""The KV tree by itself: random branches that extend, fork, cut and leave, in little room."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from engine.small import model

from glassloop.engine.tree import KVTree, NoRoom
from glassloop.errors import GlassloopError
from glassloop.ops.batch import PAGE


def _tree(window: int | None, pages: int) -> KVTree:
    small = model(window, "reference")
    return KVTree(small, pages * small.page_bytes)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("seed", range(40))
def test_it_stays_whole_whatever_branches_do(window, seed):
    rng = np.random.default_rng(seed)
    tree = _tree(window, int(rng.integers(3, 20)))
    branches: list[tuple[list[int], object, int]] = []  # tokens, path, how far back it may be cut
    for _ in range(300):
        act = rng.integers(6)
        if act == 0 or not branches:
            tokens = rng.integers(0, 3, rng.integers(1, 100)).tolist()
            path = tree.match(tokens, len(tokens))
            branches.append((tokens[: path.length], path, path.length))
        else:
            which = int(rng.integers(len(branches)))
            known, path, floor = branches[which]
            if act <= 2:
                more = rng.integers(0, 3, rng.integers(1, 70 if act == 1 else 3)).tolist()
                try:
                    tree.extend(path, more)
                    if rng.random() < 0.2:
                        tree.cut(path, len(known))  # it was planned, and not computed after all
                        floor = len(known)
                    else:
                        tree.computed(path)
                        known, floor = known + more, len(known)
                except NoRoom:
                    pass
            elif act == 3:
                branches.append((known, tree.fork(path), len(known)))
            elif act == 4:
                known = known[: rng.integers(floor, len(known) + 1)]
                tree.cut(path, len(known))
            else:
                tree.release(path)
                branches.pop(which)
                continue
            assert path.length == len(known)
            branches[which] = known, path, floor
        tree.check_integrity()
        for known, path, _ in branches:
            held = [token for node in path.nodes for token in node.tokens]
            assert all(node.ready >= min(PAGE, len(known) - PAGE * i) for i, node in enumerate(path.nodes))
            for i, node in enumerate(path.nodes):
                assert node.tokens[: len(known) - PAGE * i] == known[PAGE * i : PAGE * (i + 1)]
            assert len(held) >= len(known)
    for _, path, _ in branches:
        tree.release(path)
    tree.check_integrity()
    assert tree.held == 0


def test_what_was_computed_is_found_again_and_the_oldest_goes_first():
    tree = _tree(None, 4)
    for start in (0, 100, 200):
        path = tree.match([start] * 40, 40)
        assert path.length == 0
        tree.extend(path, [start] * 40)
        tree.computed(path)
        tree.release(path)
    lengths = []
    for start in (0, 100, 200):
        path = tree.match([start] * 40, 39)
        lengths.append(path.length)
        tree.release(path)
    assert lengths == [0, 39, 39]


def test_a_fork_is_a_reference_until_the_two_part():
    tree = _tree(None, 10)
    path = tree.match([], 0)
    tree.extend(path, [7] * 40)
    tree.computed(path)
    used = tree.used_bytes
    twin = tree.fork(path)
    assert tree.used_bytes == used
    tree.extend(path, [8])
    tree.extend(twin, [9])
    assert tree.used_bytes == used + tree.page_bytes
    assert path.nodes[0] is twin.nodes[0] and path.nodes[1] is not twin.nodes[1]


def test_paths_that_part_from_a_page_with_the_same_tokens_share_one():
    """Beams that were preempted begin again at a page of which another prompt used the rest otherwise."""
    tree = _tree(None, 10)
    other = tree.match([], 0)
    tree.extend(other, [7] * 16 + [5] * 16)
    tree.computed(other)
    beams = [tree.match([7] * 32, 32) for _ in range(3)]
    for beam, last in zip(beams, (1, 2, 3), strict=True):
        assert beam.length == 16
        tree.extend(beam, [7] * 16 + [last])
    assert beams[0].nodes[0] is beams[1].nodes[0] is beams[2].nodes[0] is not other.nodes[0]
    assert tree.held == 1 + 1 + 3
    assert len(tree.take_copies()) == 1
    tree.check_integrity()


def test_the_check_does_not_trust_what_a_path_says_it_needs():
    """A path that forgets pages which its next row sees is damaged, whether they were given to others or
    not."""
    tree = _tree(40, 20)
    path = tree.match([1], 0)
    for _ in range(4):
        tree.extend(path, [1] * PAGE)
        tree.computed(path)
    tree.check_integrity()
    while path.behind < 3:  # the next row, at 128, sees the positions from 89 on, so the page 2 too
        path.nodes[path.behind].needed -= 1
        path.behind += 1
    with pytest.raises(AssertionError, match="all pages that its next row sees"):
        tree.check_integrity()


def test_pages_behind_every_window_make_room_for_more():
    plain, windowed = _tree(None, 8), _tree(40, 8)
    for tree, fits in ((plain, 8), (windowed, 12)):
        path = tree.match([], 0)
        made = 0
        with pytest.raises(NoRoom):
            while True:
                tree.extend(path, [made] * PAGE)
                tree.computed(path)
                made += 1
        assert made >= fits
        tree.check_integrity()


@pytest.mark.parametrize("ops", ["native", "reference"])
@pytest.mark.parametrize("pages", [2, 5, 30, 1000])
def test_all_groups_of_layers_share_one_budget(ops, pages):
    small = model(40, ops)
    memory = pages * small.page_bytes
    tree = KVTree(small, memory)
    arrays = {id(array): array for pool in tree.pages for array in (pool.keys, pool.values)}
    assert len(tree.pages) == 2 and sum(array.nbytes for array in arrays.values()) <= memory


def test_too_little_memory_is_an_error():
    with pytest.raises(GlassloopError, match="kv_memory"):
        _tree(None, 1)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("seed", range(20))
def test_a_forgotten_text_leaves_what_other_texts_go_on_from(window, seed):
    rng = np.random.default_rng(seed)
    tree = _tree(window, 200)
    stem = rng.integers(0, 3, rng.integers(1, 100)).tolist()
    texts = []
    for _ in range(4):
        kept, more = rng.integers(1, len(stem) + 1), rng.integers(1, 80)
        texts.append(stem[:kept] + rng.integers(0, 3, more).tolist())
    for text in texts:
        path = tree.match(text, len(text))
        tree.extend(path, text[path.length :])
        tree.computed(path)
        tree.release(path)

    def found(text):
        path = tree.match(text, len(text))
        length = path.length
        tree.release(path)
        return length

    held = tree.match(texts[1], len(texts[1]))  # by a request that runs
    tree.forget_text(texts[0])
    tree.forget_text(texts[1])
    tree.check_integrity()
    others = texts[1:]
    shared = max(_common(texts[0], other) for other in others)
    assert found(texts[0]) <= shared  # nothing is left that was this text's alone
    assert all(found(text) == len(text) for text in others)
    tree.release(held)
    for text in others:
        tree.forget_text(text)
    tree.check_integrity()
    assert tree.node_count == 0 and found(stem) == 0


def _common(one, other):
    """Returns how many first tokens two texts share."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def test_a_text_is_forgotten_under_every_adapter_and_realm():
    tree = _tree(None, 20)
    for adapter, realm in ((0, ""), (1, ""), (1, "client")):
        path = tree.match([7] * 40, 40, adapter, realm)
        tree.extend(path, [7] * 40)
        tree.computed(path)
        tree.release(path)
    tree.forget_text([7] * 40)
    assert tree.node_count == 0
