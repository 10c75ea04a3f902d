"""Batches and rules with one number or array that is wrong, made at random: an op set must refuse each before
it touches memory.

Run as a program it makes many of them, some on each instruction set: the sanitizers' test does that.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from ops.random_models import random_config, random_tensor

from glassloop.decode.candidates import Candidates
from glassloop.decode.chosen import record_with
from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import PAGE, Batch, BatchError, Span
from glassloop.ops.native import chooser, library
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.rows import RuleError, summarize

_FAR = (-1, -(2**30), -(2**31), 2**31 - 1, 2**31, 2**40, -(2**63), 2**64)


def _outside(rng: np.random.Generator, limit: int) -> int:
    """A number that is not from 0 to below the limit: just outside, far outside, or more than C can hold."""
    near = (-1, -limit, limit, limit + int(rng.integers(1, 100)))
    numbers = near if rng.random() < 0.6 else _FAR
    return numbers[int(rng.integers(len(numbers)))]


def _spoil(rng: np.random.Generator, batch: Batch, vocabulary: int, pages: int) -> tuple[str, Batch]:
    """The same batch with one thing wrong, and what that is."""
    tokens, positions, spans, wanted, adapters, reach = map(list, batch[:6])
    which, row = int(rng.integers(len(spans))), int(rng.integers(len(tokens)))
    span: Span = spans[which]
    kind = str(
        rng.choice(
            [
                "token",
                "position",
                "wanted",
                "page",
                "first",
                "rows",
                "short",
                "dtype",
                "apart",
                "count",
                "adapter",
                "none",
                "reach",
                "far position",
                "reach count",
            ]
        )
    )
    if kind == "token":
        tokens[row] = _outside(rng, vocabulary)
    elif kind == "position":
        positions[row] += int(rng.choice([-1, 1, 2**31]))
    elif kind == "wanted":
        wanted[int(rng.integers(len(wanted)))] = _outside(rng, len(tokens))
    elif kind == "page":
        table = span.pages.copy()
        used = -(-span.length // PAGE)
        wrong = int(rng.choice([-1, pages, 2**31 - 1, -(2**31)]))
        table[int(rng.integers(len(table))), int(rng.integers(used))] = wrong
        spans[which] = span._replace(pages=table)
    elif kind == "first":
        spans[which] = span._replace(first=int(rng.choice([-1, span.first + 1, 10**6, 2**31 - 1, 2**40])))
    elif kind == "rows":
        start, stop = span.start + int(rng.integers(-1, 2)), span.stop + int(rng.choice([-1, 1, 10**6]))
        spans[which] = span._replace(start=start, stop=stop)
    elif kind == "short":
        spans[which] = span._replace(pages=span.pages[:, : (span.length - 1) // PAGE].copy())
    elif kind == "dtype":
        spans[which] = span._replace(pages=span.pages.astype(np.int64))
    elif kind == "apart":
        spans[which] = span._replace(pages=np.repeat(span.pages, 2, axis=1)[:, ::2])
    elif kind in ("reach", "far position", "reach count"):
        reach = [row + 1 - span.start for span in spans for row in range(span.start, span.stop)]
        if kind == "reach":
            row = int(rng.integers(span.start, span.stop))
            own = row - span.start
            reach[row] = int(rng.choice([own, 0, -1, span.length + 1, 2**31 - 1, -(2**31)]))
        elif kind == "far position":
            positions[row] = int(rng.choice([-1, 2**22, 2**31, -(2**31)]))
        elif rng.random() < 0.5 and len(reach) > 1:
            reach.pop()
        else:
            reach.append(1)
    elif kind == "count":
        (tokens if rng.random() < 0.5 else positions).append(0)
    elif kind == "adapter":
        adapters = [0] * len(tokens)
        adapters[row] = _outside(rng, 1)
    else:
        tokens, positions, spans, wanted = [], [], [], []
    return kind, Batch(tokens, positions, spans, wanted, adapters, reach)


def check_batches(seed: int, count: int = 12) -> None:
    """Each bad batch is refused by both op sets, and no key or value is touched by it."""
    rng = np.random.default_rng(seed)
    config = random_config(rng, 1)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"]) for name, shape in config.shapes().items()
    }
    for ops in (NativeOps(), ReferenceOps()):
        model = Transformer(config, weights, ops)
        cache = Branches(model, 96, branches=3)
        for _ in range(count):
            work = [
                (branch, 0, rng.integers(0, config.vocab_size, rng.integers(1, 90)).tolist())
                for branch in range(int(rng.integers(1, 4)))
            ]
            good = cache.batch(work, every_logit=True)
            kind, bad = _spoil(rng, good, config.vocab_size, cache.pages[0].count)
            before = [group.keys.tobytes() + group.values.tobytes() for group in cache.pages]
            try:
                model.forward(bad, cache.pages)
            except BatchError as error:
                assert "\n" not in str(error)
            else:
                raise AssertionError(f"seed {seed}: {ops.name} computed a batch with a wrong {kind}")
            after = [group.keys.tobytes() + group.values.tobytes() for group in cache.pages]
            assert before == after, f"seed {seed}: {kind} has left something"
            model.forward(good, cache.pages)


def _bad_rule(rng: np.random.Generator, width: int) -> Rule:
    ids = rng.permutation(width)[: rng.integers(1, width + 1)].astype(np.int32)
    action = Action(int(rng.integers(3)))
    kind = int(rng.integers(7))
    if kind <= 1:
        ids[int(rng.integers(len(ids)))] = int(rng.choice([-1, width, 2**31 - 1, -(2**31)]))
        return Rule(action, 1.5, ids)
    if kind == 2:
        return Rule(Action.KEEP, which=np.ones(width + int(rng.choice([-1, 1])), bool))
    if kind == 3:
        return Rule(action, 1.5, ids.astype(np.int64))
    if kind == 4:
        return Rule(Action.LESS, 1.5, ids, np.ones(len(ids) + int(rng.choice([-1, 1]))))
    if kind == 5:
        return Rule(Action.LESS, 1.5, ids, np.ones(len(ids), np.float32))
    return Rule(action, 1.5, None) if rng.random() < 0.5 else Rule(Action.KEEP, which=ids)


def check_rules(seed: int) -> None:
    """A rule that does not fit is refused by C and by NumPy, and the logits are as they were."""

    def choose(logits: Any, lines: Any, alternatives: int = 0) -> bytes | bytearray:
        return chooser.choose(logits, lines, record_with(alternatives))

    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(1, 4)), int(rng.integers(2, 300))
    logits = (rng.standard_normal((rows, width)) * 4).astype(np.float32)
    before, head = logits.tobytes(), int(rng.integers(1, width + 1))
    fine = [Rule(Action.FIRST, 5.0), Rule(Action.DIVIDE, 1.3, np.arange(width, dtype=np.int32))]
    rules = [*fine[: rng.integers(3)], _bad_rule(rng, width)]
    lines = [(RowRequest(head, 1.0, [], 7), place, 3) for place in range(rows)]
    lines[int(rng.integers(rows))] = (RowRequest(head, 1.0, rules, 7), 0, 3)
    refused(lambda: choose(logits, lines), seed)
    summary = summarize(logits[0], head)
    asked = RowRequest(head, 1.0, rules)
    refused(lambda: chooser.survivors(logits[0], summary, asked, len(rules)), seed)
    whole = Candidates.of(logits[0], summary, ReferenceOps.rows)
    refused(lambda: whole.following(rules[-1]), seed)
    for bad in (
        lambda: choose(logits, [(RowRequest(head, 1.0, []), int(rng.choice([-1, rows])), 3)]),
        lambda: choose(logits, [(RowRequest(width + 1, 1.0, []), 0, 3)]),
        lambda: choose(logits, [(RowRequest(head, 1.0, [], alternatives=head + 1), 0, 3)], head + 1),
        lambda: choose(logits, [(RowRequest(head, 1.0, [], alternatives=1), 0, 3)]),
        lambda: choose(logits, [(RowRequest(0, 1.0, []), 0, 3)]),
        lambda: choose(logits, [(RowRequest(head, 1.0, []), 0, -1)]),
        lambda: choose(logits.astype(np.float64), [(RowRequest(head, 1.0, []), 0, 3)]),
        lambda: chooser.survivors(logits[0], summary, RowRequest(head, 1.0, []), 1),
        lambda: chooser.survivors(logits[0], summary, RowRequest(width + 1, 1.0, []), 0),
        lambda: chooser.race(1, np.empty(0, np.int32), np.empty(0), logits[0], 1.0),
        lambda: chooser.race(1, np.zeros(2, np.int32), np.zeros(1), None, 1.0),
    ):
        refused(bad, seed)
    for ops in (NativeOps.rows, ReferenceOps.rows):
        for token in (-1, width, 2**40):
            refused(lambda ops=ops, token=token: ops.rank_of(logits[0], token), seed)  # type: ignore[misc]
    assert logits.tobytes() == before, f"seed {seed}: a refused rule has changed a logit"


def check_amounts(seed: int) -> None:
    """Any amounts, in any order of actions: there is a token or there is none, and the logits are as they
    were."""
    rng = np.random.default_rng(seed)
    width = int(rng.choice([1, 2, 70, 300, 3000]))
    logits = (rng.standard_normal((1, width)) * rng.choice([0.0, 1.0, 1e30])).astype(np.float32)
    logits[0, rng.random(width) < 0.2] = rng.choice([-np.inf, -0.0, -3e38])
    amounts = [0.0, -0.0, -1.0, 0.5, 1.0, 2.0, 1e-320, 1e300, -1e300, np.inf, -np.inf, np.nan]
    rules = []
    for _ in range(int(rng.integers(1, 7))):
        action, which = Action(int(rng.integers(len(Action)))), None
        if action is Action.KEEP:
            which = rng.random(width) < 0.7
        elif action < Action.KEEP:
            which = rng.permutation(width)[: rng.integers(1, width + 1)].astype(np.int32)
        rules.append(Rule(action, float(rng.choice(amounts)), which))
    before, head = logits.tobytes(), int(rng.integers(1, min(width, 100) + 1))
    request = RowRequest(head, float(rng.choice([1.0, 0.5])), rules, 7, min(head, 5))
    made = chooser.choose(logits, [(request, 0, 3)], record_with(request.alternatives))
    assert -1 <= int(np.frombuffer(made, np.int64)[0]) < width
    summary = native_rows.summarize(logits[0], head)
    if summary.finite:
        chooser.survivors(logits[0], summary, RowRequest(head, 1.0, rules), len(rules))
    assert logits.tobytes() == before, f"seed {seed}: a logit was changed"


def refused(act: Any, seed: int) -> None:
    try:
        act()
    except (RuleError, GlassloopError, IndexError):
        return
    raise AssertionError(f"seed {seed}: it was not refused")


if __name__ == "__main__":
    # What is wrong is found before any kernel runs, so each case is tried with one of them.
    native_library = library.library()
    sets = [name for name in library.INSTRUCTION_SETS if native_library.gl_select_kernels(name.encode())]
    for first, name in enumerate(sets):
        native_library.gl_select_kernels(name.encode())
        for number in range(first, int(sys.argv[1]), len(sets)):
            check_batches(number)
            check_rules(number)
            for seed in range(100 * number, 100 * number + 100):
                check_amounts(seed)
        print(name, "fine", flush=True)
