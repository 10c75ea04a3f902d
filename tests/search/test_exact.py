"""On a toy whose whole tree is enumerated, the methods answer what the enumeration says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from search.toy import Leaf, after_steps, answers, leaves, options

from glassloop.search.solve import solve_each

N, TRIALS = 3, 400
PROMPT = [104, 105]


@pytest.fixture(scope="module")
def tree(tiny):
    found = leaves(tiny, PROMPT)
    assert len(found) == 15 and abs(sum(leaf.probability for leaf in found) - 1) < 1e-9
    return found


def critical(degrees: int) -> float:
    """The value that χ² exceeds once in ten thousand times (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 3.719 * part**0.5) ** 3


def able(drawn: tuple[Leaf, ...]) -> list[Leaf]:
    """The leaves that may answer: those that ended by themselves, if there is one."""
    return [leaf for leaf in drawn if leaf.ended] or list(drawn)


def most_frequent(drawn: tuple[Leaf, ...]) -> Leaf:
    """The first of the texts that are most frequent."""
    texts = Counter(leaf.text for leaf in able(drawn))
    best = max(texts.values())
    return next(leaf for leaf in able(drawn) if texts[leaf.text] == best)


def most_frequent_and_likely(drawn: tuple[Leaf, ...]) -> Leaf:
    """The likeliest of the texts that are most frequent; here all paths of a text are equally likely."""
    texts = Counter(leaf.text for leaf in able(drawn))
    return max(able(drawn), key=lambda leaf: (texts[leaf.text], leaf.logprob / leaf.tokens))


def first_accepted(drawn: tuple[Leaf, ...]) -> Leaf:
    return next((leaf for leaf in drawn if accepts(leaf.text)), drawn[0])


def likeliest(drawn: tuple[Leaf, ...]) -> Leaf:
    return max(able(drawn), key=lambda leaf: leaf.logprob / leaf.tokens)


def likeliest_by_sum(drawn: tuple[Leaf, ...]) -> Leaf:
    return max(able(drawn), key=lambda leaf: leaf.logprob)


def accepts(text: str) -> bool:
    return text.endswith("b")


@pytest.mark.parametrize(
    "method, more, choose",
    [
        ("vote", {}, most_frequent_and_likely),
        ("vote", {"ties": "first"}, most_frequent),
        ("best", {"verify": accepts}, first_accepted),
        ("best", {"verify": accepts, "width": 1}, first_accepted),
        ("likelihood", {}, likeliest),
        ("likelihood", {"by": "sum"}, likeliest_by_sum),
    ],
)
def test_answers_have_the_distribution_of_the_enumeration(tiny, tree, method, more, choose):
    expected = answers(tree, N, choose)
    questions = [PROMPT] * TRIALS
    given = dict(n=N, extract=lambda text: text, sampling=options(tiny, seed=11), **more)
    seen = Counter(solution.text for solution in solve_each(tiny, questions, method, **given))
    assert set(seen) <= set(expected)
    agree(seen, expected, TRIALS)


def agree(seen: Counter[str], expected: dict[str, float], trials: int) -> None:
    """Asserts that texts have these probabilities, by χ²."""
    assert sum(seen.values()) == trials
    # Rare answers are put together, so that each class has at least five.
    classes: list[list[float]] = [[0.0, 0.0]]
    for text, chance in sorted(expected.items(), key=lambda item: item[1]):
        if classes[-1][0] >= 5:
            classes.append([0.0, 0.0])
        classes[-1][0] += chance * trials
        classes[-1][1] += seen[text]
    if classes[-1][0] < 5 and len(classes) > 1:
        classes[-2] = [one + other for one, other in zip(classes[-2], classes.pop(), strict=True)]
    wanted, found = np.array(classes).T
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    assert statistic < critical(len(classes) - 1), (statistic, classes)


@pytest.mark.parametrize("alpha, steps", [(2.0, 3), (0.5, 2), (4.0, 0)])
def test_power_sampling_has_the_distribution_of_its_chain(tiny, tree, alpha, steps):
    """Not only in the limit: after any number of steps, by the matrix of all transitions."""
    given = {"alpha": alpha, "steps": steps, "extract": str, "sampling": options(tiny, seed=2)}
    seen = Counter(solution.text for solution in solve_each(tiny, [PROMPT] * 300, "power", **given))
    agree(seen, after_steps(tree, alpha, steps), 300)


def test_each_single_answer_is_that_of_its_paths(tiny, tree):
    """Not only in distribution: from the paths that were drawn, the right one is chosen."""
    by_text = {(leaf.text, leaf.ended): leaf for leaf in tree}
    for method, choose in (("vote", most_frequent_and_likely), ("likelihood", likeliest)):
        given = {"n": 5, "extract": str, "sampling": options(tiny, seed=5)}
        for solution in solve_each(tiny, [PROMPT] * 40, method, **given):
            drawn = tuple(by_text[path.text, path.finish_reason == "stop"] for path in solution.paths)
            assert solution.text == choose(drawn).text
            if method == "vote":
                counted = Counter(leaf.text for leaf in able(drawn))
                assert solution.votes == {text: float(count) for text, count in counted.items()}
