"""Readings: logits, lenses and embeddings of known tokens share the engine with everything else, give the
same bits whatever runs beside them, and leave nothing behind however they end."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from engine.random_runs import SmallLLM, small_llm
from engine.small import CONTEXT, loop, model, naive, request, same
from waiting import wait_until

from glassloop import GlassloopError, Sampling, TraceError
from glassloop.engine import logits
from glassloop.engine.deadline import Cancelled, Deadline, TimedOut
from glassloop.engine.logits import logits_after, mean_hidden
from glassloop.engine.tasks import task as task_module
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.task import RowProgram
from glassloop.engine.thread import Busy, EngineThread
from glassloop.model.cache import Branches
from glassloop.model.lens import Lens
from glassloop.ops.native.ops import NativeOps
from glassloop.record.format.glass_file import from_bytes, to_bytes


def _ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def _hidden(transformer, ids: list[int]) -> np.ndarray:
    branches = Branches(transformer, CONTEXT + 32)
    return np.array(transformer.hidden(branches.batch([(0, 0, ids)], every_logit=True), branches.pages))


def _all_of(reading: Reading, pieces: list[np.ndarray]) -> np.ndarray:
    reading.wait()
    return np.concatenate(pieces)


def _reading(kind: str, transformer, ids: list[int], first: int, deadline: Deadline | None = None):
    """A reading, and what it must give."""
    pieces: list[np.ndarray] = []
    if kind == "logits":
        whole = Branches(transformer, CONTEXT + 32).forward([(0, 0, ids)], every_logit=True)
        return Reading(ids, first, pieces.append, None, deadline), pieces, whole[first:]
    if kind == "hidden":
        program = RowProgram(transformer.hidden, together=True)
        return (
            Reading(ids, first, pieces.append, program, deadline),
            pieces,
            _hidden(transformer, ids)[first:],
        )
    lens = Lens(transformer)
    branches = Branches(transformer, CONTEXT + 32)
    compute = lens.layers if kind == "layers" else lens.attention
    expected = compute(branches.batch([(0, 0, ids)]), branches.pages)
    program = RowProgram(compute, together=False)
    return Reading(ids, len(ids) - 1, pieces.append, program, deadline), pieces, expected


KINDS = ("logits", "hidden", "layers", "attention")


@pytest.mark.parametrize("seed", range(40))
def test_they_change_nothing_and_nothing_changes_them(seed, monkeypatch):
    """Readings and runs at random times, in little room, some cancelled, some late."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(NativeOps, "step_rows", int(rng.choice([16, 40, 512])))
    monkeypatch.setattr(NativeOps, "rows_beside", int(rng.choice([1, 7, 128])))
    monkeypatch.setattr(task_module, "_SCORED_ROWS", int(rng.choice([1, 5, 64])))
    small = model(int(rng.integers(1, 70)) if rng.random() < 0.5 else None)
    shared = _ids(60, seed)
    waiting: list = []
    for number in range(int(rng.integers(3, 9))):
        ids = shared[: rng.integers(0, 60)] + _ids(int(rng.integers(1, 90)), number)
        deadline = Deadline(0.0 if rng.random() < 0.1 else None)
        waiting.append(_reading(str(rng.choice(KINDS)), small, ids, int(rng.integers(len(ids))), deadline))
    for number in range(int(rng.integers(2, 6))):
        sampling = Sampling(max_tokens=20, seed=number, n=int(rng.integers(1, 4)))
        if rng.random() < 0.3:
            sampling = Sampling(max_tokens=12, beam_width=3, n=2)
        waiting.append(request(shared[: rng.integers(1, 60)] + _ids(9, number), sampling))
    readings = [each for each in waiting if isinstance(each, tuple)]
    requests = [each for each in waiting if not isinstance(each, tuple)]
    engine = loop(small, int(rng.integers(12, 30)), most_running=int(rng.integers(1, 9)))
    rng.shuffle(waiting)
    while waiting or engine.busy:
        while waiting and rng.random() < 0.4:
            each = waiting.pop()
            engine.add(each[0] if isinstance(each, tuple) else each)
        if rng.random() < 0.03:
            readings[int(rng.integers(len(readings)))][0].deadline.cancel()
        engine.step()
        if rng.random() < 0.2:
            engine.tree.check_integrity()
    engine.tree.check_integrity()
    assert engine.tree.held == 0 and not engine.tree.paths
    assert not engine.scheduler.running and not engine.scheduler.waiting
    for reading, pieces, expected in readings:
        try:
            found = _all_of(reading, pieces)
        except (TimedOut, Cancelled):
            assert reading.deadline.cancelled or reading.deadline.expired
        else:  # or it was cancelled when it had ended
            assert found.tobytes() == expected.tobytes()
    for each in requests:
        for run in each.runs:
            if each.sampling.beam_width == 1:
                assert same(run, naive(small, run))
            else:
                alone = request(each.prompt_ids, each.sampling)
                fresh = loop(small)
                fresh.add(alone)
                while fresh.busy:
                    fresh.step()
                assert [one.tokens for one in each.runs] == [one.tokens for one in alone.runs]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_gets_a_token_in_every_step_beside_them(kind, monkeypatch):
    """And a step has no more rows for them than for a prompt."""
    monkeypatch.setattr(NativeOps, "rows_beside", 16)
    small = model(None)
    engine = loop(small)
    talker = request(_ids(5), Sampling(max_tokens=150, seed=1, ignore_eos=True), drafts=False)
    engine.add(talker)
    engine.step()
    readings = [_reading(kind, small, _ids(150, seed), 0) for seed in range(1, 4)]
    for reading, _, _ in readings:
        engine.add(reading)
    while not all(reading.ended for reading, _, _ in readings):
        before, rows = len(talker.runs[0].tokens), engine.counters.rows
        engine.step()
        assert len(talker.runs[0].tokens) == before + 1
        assert engine.counters.rows - rows <= 1 + 16
    for reading, pieces, expected in readings:
        assert _all_of(reading, pieces).tobytes() == expected.tobytes()


def test_a_short_prompt_does_not_wait_for_the_end_of_long_ones(monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", 16)
    small = model(None)
    engine = loop(small)
    long = [_reading("hidden", small, _ids(190, seed), 0)[0] for seed in range(4)]
    for reading in long:
        engine.add(reading)
    engine.step()
    short = request(_ids(6, 9), Sampling(max_tokens=1, seed=1))
    engine.add(short)
    steps = 0
    while not short.ended:
        engine.step()
        steps += 1
    assert steps <= 3 and not any(reading.ended for reading in long)
    assert same(short.runs[0], naive(small, short.runs[0]))
    while engine.busy:
        engine.step()
    ends = [reading.order for reading in long]
    assert ends == sorted(ends)


def test_equally_long_ones_come_in_the_order_of_arrival(monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", 16)
    engine, ended = loop(model(None)), []
    for number in range(4):
        ids = _ids(100, number)
        engine.add(Reading(ids, 99, lambda _, number=number: ended.append((number, engine.counters.steps))))
    while engine.busy:
        engine.step()
    assert [number for number, _ in ended] == [0, 1, 2, 3]
    assert ended[0][1] <= 7  # the first has had all rows of its steps


@pytest.mark.parametrize("length", [1, 127, 128, 129, 199])
def test_a_mean_has_the_same_bits_however_its_rows_come(length, monkeypatch):
    ids, transformer = _ids(length), model(None)
    rows = _hidden(transformer, ids).astype(np.float64)
    total = sum((rows[at : at + 128].sum(axis=0) for at in range(0, length, 128)), np.zeros(rows.shape[1]))
    expected = (total / length).astype(np.float32)
    for step in (512, 40, 7):
        monkeypatch.setattr(NativeOps, "step_rows", step)
        llm = SmallLLM()
        assert mean_hidden(llm.engine, ids).tobytes() == expected.tobytes()
        assert mean_hidden(llm.engine, ids).tobytes() == expected.tobytes()  # all of it in the cache
        llm.close()


def test_they_are_counted_and_refused_like_requests():
    small = model(None)
    engine = EngineThread(loop(small, most_running=1), most_waiting=2)
    gate, started = threading.Event(), threading.Event()

    def hold(run, token):
        started.set()
        gate.wait(120)

    engine.submit(request([65], Sampling(max_tokens=2, seed=1), listener=hold))
    assert started.wait(120)
    for _ in range(2):
        engine.submit(_reading("logits", small, _ids(9), 0)[0])
    assert engine.load.waiting == 2
    with pytest.raises(Busy, match="2 requests are waiting already; at most 2 are allowed"):
        mean_hidden(engine, _ids(9))
    gate.set()
    engine.call(lambda: None)
    wait_until(lambda: engine.load == (0, 0))
    assert engine.loop.counters.readings == 2
    engine.close()


def test_one_that_is_late_or_cancelled_ends_at_once_and_holds_nothing(monkeypatch):
    monkeypatch.setattr(logits, "_SCORED_BYTES", 1)  # so that 150 rows are computed in several steps
    llm = SmallLLM()
    with pytest.raises(TimedOut, match=r"explain took longer than 0\.001 s"):
        late = Deadline(0.001, "explain")
        time.sleep(0.01)
        list(logits_after(llm.engine, _ids(150), 0, late))
    cancelled = Deadline()
    rows = logits_after(llm.engine, _ids(150), 0, cancelled)
    next(rows)
    cancelled.cancel()
    with pytest.raises(Cancelled):
        list(rows)
    for ask in (
        lambda: mean_hidden(llm.engine, _ids(50), cancelled),
        lambda: llm.lens.attention(_ids(50), deadline=cancelled),
        lambda: llm.lens.layers(_ids(50), deadline=cancelled),
        lambda: llm.lens.neighbours(65, deadline=cancelled),
        lambda: llm.lens.neighbours_in(_ids(50), deadline=cancelled),
    ):
        with pytest.raises(Cancelled):
            ask()
    run = llm.generate(_ids(20), Sampling(max_tokens=5, seed=1, ignore_eos=True))
    beams = llm.generate(_ids(20), Sampling(max_tokens=50, beam_width=4, ignore_eos=True))
    for ask in (
        lambda: run.explain(3, deadline=cancelled),
        lambda: llm.replay(run, deadline=cancelled),
        lambda: llm.replay(beams, deadline=cancelled),
    ):
        with pytest.raises(Cancelled):
            ask()
    llm.engine.call(llm.engine.loop.tree.check_integrity)
    assert llm.engine.loop.tree.held == 0 and llm.engine.load == (0, 0)
    llm.close()


def test_closing_the_engine_ends_them():
    llm = SmallLLM()
    held = threading.Event()
    reading = Reading(_ids(20), 0, lambda _: held.wait(120))
    llm.engine.submit(reading)
    other = Reading(_ids(20, 1), 0, lambda _: None)
    llm.engine.submit(other)
    closing = threading.Thread(target=llm.close)
    closing.start()
    held.set()
    closing.join(120)
    for each in (reading, other):
        try:
            each.wait()
        except Cancelled as error:
            assert "closed" in str(error)
    with pytest.raises(GlassloopError, match="closed"):
        mean_hidden(llm.engine, _ids(3))


def test_what_goes_wrong_in_one_is_its_own():
    small = model(None)
    engine = loop(small)

    def broken(batch, pages):
        raise ZeroDivisionError("broken on purpose")

    good, pieces, expected = _reading("hidden", small, _ids(60), 0)
    bad = [
        Reading(_ids(60, 1), 3, lambda _: None, RowProgram(broken, together=False)),
        Reading(_ids(60, 1), 3, lambda _: 1 // 0),
        Reading([1, 2, 9999], 0, lambda _: None),
        Reading([1, -1, 3], 0, lambda _: None),
        Reading([], 0, lambda _: None),
        Reading(_ids(CONTEXT + 1), 0, lambda _: None),
    ]
    run = request(_ids(30, 2), Sampling(max_tokens=20, seed=1))
    outside = request([1, 2, 2**31 - 1], Sampling(max_tokens=2, seed=1))
    for each in (good, *bad, run, outside):
        engine.add(each)
    while engine.busy:
        engine.step()
    for each in bad:
        with pytest.raises((ZeroDivisionError, GlassloopError)):
            each.wait()
    assert _all_of(good, pieces).tobytes() == expected.tobytes()
    assert same(run.runs[0], naive(small, run.runs[0]))
    assert outside.runs[0].finish_reason == "error" and "2147483647" in str(outside.runs[0].error)
    engine.tree.check_integrity()
    assert engine.tree.held == 0


def test_one_that_no_memory_could_hold_is_refused():
    engine = EngineThread(loop(model(None), pages=3), most_waiting=9)
    with pytest.raises(GlassloopError, match="no room for 150 tokens"):
        mean_hidden(engine, _ids(150))
    engine.close()


# ── runs from elsewhere ────────────────────────────────────────────────────────────────────────────────────


def _loaded(**changed):
    run = small_llm().generate(_ids(9), Sampling(max_tokens=6, seed=1, ignore_eos=True))
    (made,) = from_bytes(to_bytes([run]))
    for name, value in changed.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt_ids": []}, "has no prompt"),
        ({"prompt_ids": [257]}, "has the token id 257; small has ids from 0 to 256"),
        ({"prompt_ids": [-1]}, "has the token id -1"),
        ({"prompt_ids": [2**31 - 1]}, "has the token id 2147483647"),
        ({"prompt_ids": [65] * 5000}, "has 5006 tokens; small has room for 200"),
        ({"context": 10**9}, "has a context of 1000000000 tokens"),
        ({"model_hash": ""}, "was made by a model that is not known"),
        ({"model_hash": "f" * 64}, "was made by another model"),
    ],
)
def test_a_run_that_does_not_fit_this_model_is_only_to_be_looked_at(changed, said):
    llm, run = small_llm(), _loaded(**changed)
    asks = [
        lambda: llm.explain(run, 0),
        lambda: llm.fork(run, 1),
        lambda: llm.replay(run),
        lambda: llm.lens.attention(run),
        lambda: llm.lens.layers(run),
        lambda: llm.lens.neighbours_in(run),
        lambda: llm.prepare_rest(run),
    ]
    if "model_hash" not in changed:
        asks.append(lambda: llm.replay(run, strict=False))
    for ask in asks:
        with pytest.raises(TraceError, match=said):
            ask()


def test_a_run_goes_on_within_the_callers_limits():
    llm = small_llm()
    run = llm.generate(_ids(9), Sampling(max_tokens=30, seed=1, ignore_eos=True, n=2))
    (part, *_) = from_bytes(to_bytes([run.rewind(10)]))
    for own, given, expected in ((None, 5.0, 5.0), (1e9, 5.0, 5.0), (2.0, 5.0, 2.0), (3.0, None, 3.0)):
        part.sampling = Sampling(max_tokens=30, seed=1, ignore_eos=True, n=2, timeout=own)
        rest = llm.prepare_rest(part, timeout=given)
        assert (rest.sampling.timeout, rest.sampling.n, rest.runs) == (expected, 1, [part])
    part.finish_reason = part.stop_reason = None
    part.tail = ""
    list(llm.follow(rest))
    assert part.token_ids == run.token_ids


@pytest.mark.parametrize(
    "prompt", [[True, 1], [1.0], [None], ["a", 1], [[1], 2], [[[1]]], b"abc", {"a": 1}, None, 5, [1, 257]]
)
def test_a_prompt_of_the_wrong_kind_is_told_so(prompt):
    with pytest.raises(GlassloopError, match=r"^prompt.* is .*expected"):
        small_llm().generate(prompt)


def test_numpy_ids_are_token_ids():
    llm = small_llm()
    expected = llm.generate(_ids(9), Sampling(max_tokens=4, seed=1))
    for ids in (list(np.array(_ids(9))), [np.int32(one) for one in _ids(9)]):
        run = llm.generate(ids, Sampling(max_tokens=4, seed=1))
        assert run.token_ids == expected.token_ids and all(type(one) is int for one in run.prompt_ids)
