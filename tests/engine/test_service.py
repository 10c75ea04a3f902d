"""One LLM, many callers: batches, threads, coroutines, samples, cancellation, limits, faults."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from engine.small import finish, loop, model, naive, request, same
from waiting import wait_until

from glassloop import LLM, GlassloopError, Sampling, SamplingError, TextError
from glassloop.decode.luck import list_seed
from glassloop.decode.stage import REGISTER, stage
from glassloop.engine.thread import Busy, EngineThread


@pytest.fixture(scope="module")
def llm():
    with LLM(kv_memory="400MB") as made:
        yield made


PROMPTS = ["The sea is", "Once upon a time", "def add(a, b):", "The capital of France is", "1, 2, 3,"]


def test_a_list_is_one_batch_in_order_with_options_for_each(llm):
    options = [Sampling(seed=i, max_tokens=6 + i, temperature=0.5 * i) for i in range(5)]
    alone = [llm.generate(prompt, each) for prompt, each in zip(PROMPTS, options, strict=True)]
    together = llm.generate(PROMPTS, options)
    assert [run.tokens for run in together] == [run.tokens for run in alone]
    ids, option = [[504, 2025], [282]], Sampling(seed=4, max_tokens=3)
    assert [run.prompt_ids for run in llm.generate(ids, option)] == ids
    assert [run.tokens for run in llm.generate(ids, option, same_luck=True)] == [
        llm.generate(each, option).tokens for each in ids
    ]
    with pytest.raises(SamplingError, match="sampling has 2 entries; 5"):
        llm.generate(PROMPTS, options[:2])
    with pytest.raises(SamplingError, match="a single Sampling is expected"):
        llm.generate("a", options)


def test_the_prompts_of_a_list_have_luck_of_their_own(llm):
    same = ["The sea is"] * 4
    runs = llm.generate(same, Sampling(seed=7, max_tokens=8, n=2))
    assert [run.seed for run in runs] == [list_seed(7, number) for number in range(4)]
    assert runs[0].seed == 7 and [each.salt for each in runs[3].samples] == [0, 1]
    assert len({tuple(each.token_ids) for run in runs for each in run.samples}) == 8
    again = llm.generate(same, Sampling(seed=7, max_tokens=8, n=2))
    assert [run.tokens for run in again] == [run.tokens for run in runs]


def test_a_prompt_of_a_list_can_be_repeated_alone(llm):
    option = Sampling(seed=7, max_tokens=6)
    runs = llm.generate(PROMPTS, option)
    for run in runs:
        assert run.sampling.seed == run.seed
        assert llm.generate(run.prompt, run.sampling).tokens == run.tokens
        assert run.replay().identical
    assert llm.generate(PROMPTS[0], option).tokens == runs[0].tokens
    assert llm.generate(PROMPTS[:2], option)[1].tokens == runs[1].tokens  # the prompts after it do not matter


def test_a_list_can_share_its_luck(llm):
    option = Sampling(seed=7, max_tokens=6)
    runs = llm.generate(PROMPTS, option, same_luck=True)
    assert {run.seed for run in runs} == {7}
    assert [run.tokens for run in runs] == [llm.generate(prompt, option).tokens for prompt in PROMPTS]
    drawn = llm.generate(PROMPTS, Sampling(max_tokens=1), same_luck=True)
    assert len({run.seed for run in drawn}) == 1
    assert len({run.seed for run in llm.generate(PROMPTS, Sampling(max_tokens=1))}) == len(PROMPTS)
    with pytest.raises(SamplingError, match="same_luck applies to a single Sampling"):
        llm.generate(PROMPTS, [option] * len(PROMPTS), same_luck=True)


def test_runs_come_as_they_finish(llm):
    options = [Sampling(seed=i, max_tokens=60 if i == 0 else 2 + i, ignore_eos=True) for i in range(5)]
    runs = list(llm.generate_iter(PROMPTS, options))
    assert sorted(run.prompt for run in runs) == sorted(PROMPTS) and runs[-1].prompt == PROMPTS[0]
    assert all(run.finish_reason == "length" for run in runs)
    by_prompt = {run.prompt: run.tokens for run in runs}
    assert [by_prompt[prompt] for prompt in PROMPTS] == [run.tokens for run in llm.generate(PROMPTS, options)]
    assert list(llm.generate_iter([])) == []
    for one in ("The sea is", "", [504, 2025]):
        with pytest.raises(GlassloopError, match="prompts is one prompt; a list"):
            llm.generate_iter(one)
    with pytest.raises(GlassloopError, match=r"prompt is empty"):
        llm.generate_iter(["a", ""])


def test_leaving_the_runs_early_cancels_the_others(llm):
    long = Sampling(max_tokens=4000, ignore_eos=True)
    runs = llm.generate_iter(PROMPTS, [Sampling(max_tokens=2), long, long, long, long])
    assert next(runs).prompt == PROMPTS[0]
    runs.close()
    llm.engine.call(llm.engine.loop.tree.check_integrity)
    assert llm.engine.load == (0, 0) and llm.engine.loop.tree.held == 0


def test_a_list_ends_when_all_of_its_beams_have(llm):
    """Each request tells of several runs at once, and counts once."""
    runs = llm.generate(PROMPTS, [Sampling(beam_width=3, n=3, max_tokens=2 + 4 * i) for i in range(5)])
    assert all(each.finish_reason is not None for run in runs for each in run.samples)
    many = list(llm.generate_iter(PROMPTS, Sampling(beam_width=2, n=2, max_tokens=3)))
    assert sorted(run.prompt for run in many) == sorted(PROMPTS)


def test_samples_share_the_prompt_and_differ_in_luck(llm):
    run = llm.generate("Once upon a time there was", Sampling(n=4, seed=5, max_tokens=12))
    assert len(run.samples) == 4 and run.samples[0] is run
    assert [each.salt for each in run.samples] == [0, 1, 2, 3]
    assert len({tuple(each.token_ids) for each in run.samples}) == 4
    assert llm.generate("Once upon a time there was", Sampling(seed=5, max_tokens=12)).tokens == run.tokens
    tokens = list(llm.stream("Once upon a time there was", Sampling(n=2, seed=5, max_tokens=5)))
    for number in (0, 1):
        assert [t.id for t in tokens if t.sample == number] == run.samples[number].token_ids[:5]


def test_chat_goes_through_the_models_template(llm):
    run = llm.chat([{"role": "user", "content": "Say hi."}], Sampling(temperature=0, max_tokens=30))
    assert run.finish_reason == "stop" and "i" in run.text.lower()


def test_prompt_logprobs_are_right_with_a_cached_prefix_too(llm):
    prompt = "The quick brown fox jumps over the lazy dog. " * 8
    first = llm.generate(prompt, Sampling(max_tokens=1, temperature=0, prompt_logprobs=3))
    again = llm.generate(prompt, Sampling(max_tokens=1, temperature=0, prompt_logprobs=3))
    assert len(first.prompt_tokens) == len(first.prompt_ids) - 1
    assert again.prompt_tokens == first.prompt_tokens and again.tokens == first.tokens
    assert [token.id for token in first.prompt_tokens] == first.prompt_ids[1:]
    assert all(len(token.alternatives) == 3 for token in first.prompt_tokens)


def test_coroutines_and_threads_on_one_engine(llm):
    options = Sampling(seed=3, max_tokens=8)
    expected = {prompt: llm.generate(prompt, options).token_ids for prompt in PROMPTS}

    async def one(prompt):
        return prompt, [token.id async for token in llm.astream(prompt, options)]

    async def all_of_them():
        return await asyncio.gather(*[one(prompt) for prompt in PROMPTS * 3])

    with ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(llm.generate, prompt, options) for prompt in PROMPTS * 3]
        assert all(ids == expected[prompt] for prompt, ids in asyncio.run(all_of_them()))
        assert [f.result().token_ids for f in futures] == [expected[prompt] for prompt in PROMPTS * 3]
    run = asyncio.run(llm.agenerate(PROMPTS[0], options))
    assert run.token_ids == expected[PROMPTS[0]]


def test_leaving_the_loop_frees_the_request(llm):
    for token in llm.stream("The sea", Sampling(max_tokens=400)):
        assert token.id >= 0
        break
    gc.collect()

    async def leave():
        tokens = llm.astream("The sea", Sampling(max_tokens=400))
        async for _ in tokens:
            break
        await tokens.aclose()

    asyncio.run(leave())
    llm.engine.call(lambda: None)
    assert llm.engine.load == (0, 0) and llm.engine.loop.tree.held == 0


def test_a_cached_prefix_is_counted_and_not_computed_again(llm):
    prompt = "Here is a long story about nothing at all. " * 30
    counters, sampling = llm.engine.loop.counters, Sampling(max_tokens=1, temperature=0)
    rows = [counters.rows]
    cold = llm.generate(prompt, sampling)
    rows.append(counters.rows)
    warm = llm.generate(prompt, sampling)
    rows.append(counters.rows)
    assert cold.tokens == warm.tokens and cold.usage.cached_tokens < 10
    assert warm.usage.cached_tokens == len(warm.prompt_ids) - 1
    computed = [after - before for before, after in pairwise(rows)]
    assert computed == [len(cold.prompt_ids) - cold.usage.cached_tokens, 1]
    warm = llm.generate(prompt, Sampling(max_tokens=4, temperature=0))
    seconds = [token.seconds for token in warm.tokens]
    assert seconds == sorted(seconds) and warm.timings.queue >= 0 and warm.timings.decode > 0


def test_an_error_in_one_request_is_its_own(llm):
    @stage("breaks", kind="mask")
    def breaks(candidates, step):
        if step.history.generated_length == 2:
            raise ZeroDivisionError("broken on purpose")
        return candidates

    try:
        options = [Sampling(max_tokens=6, seed=i, stages=["breaks"] if i == 2 else None) for i in range(5)]
        runs = llm.generate(PROMPTS, options)
    finally:
        REGISTER.pop("breaks")
    assert [run.finish_reason for run in runs] == ["length", "length", "error", "length", "length"]
    assert isinstance(runs[2].error, ZeroDivisionError) and len(runs[2].tokens) == 2
    position = len(runs[2].prompt_ids) + 2
    assert runs[2].stop_reason == f"broken on purpose (raised by stage 'breaks' at position {position})"
    llm.engine.call(llm.engine.loop.tree.check_integrity)
    assert llm.engine.loop.tree.held == 0


def test_a_prompt_too_long_is_refused_with_the_numbers(llm):
    with pytest.raises(TextError, match=r"9000 tokens; .* room for 8192"):
        llm.generate([504] * 9000)
    with (
        LLM(kv_memory="3MB") as small,
        pytest.raises(TextError, match="400 tokens, for whose keys and values kv_memory has no room"),
    ):
        small.generate([504] * 400)


def test_a_branch_that_outgrows_the_memory_ends_with_what_it_has():
    with LLM(kv_memory="3MB") as small:  # four pages: 128 tokens
        run = small.generate("The sea is", Sampling(max_tokens=500, temperature=0, ignore_eos=True))
        assert (run.finish_reason, run.stop_reason) == ("length", "kv memory") and len(run.tokens) > 100


def test_a_full_queue_refuses():
    engine = EngineThread(loop(model(None), most_running=1), most_waiting=3)
    gate = threading.Event()
    started = threading.Event()

    def wait(run, token):
        started.set()
        gate.wait(120)

    engine.submit(request([65], Sampling(max_tokens=3), listener=wait))
    assert started.wait(120)
    for _ in range(3):
        engine.submit(request([66], Sampling(max_tokens=1)))
    with pytest.raises(Busy, match="3 requests are waiting already; at most 3 are allowed"):
        engine.submit(request([66], Sampling(max_tokens=1)))
    gate.set()
    engine.close()
    with pytest.raises(GlassloopError, match="closed"):
        engine.submit(request([66], Sampling(max_tokens=1)))


def test_a_listener_that_raises_loses_only_its_own_request():
    def raises(run, token):
        raise RuntimeError

    engine = loop(model(None))
    bad = request([65] * 5, Sampling(max_tokens=50, seed=1), listener=raises)
    good = request([66] * 5, Sampling(max_tokens=50, seed=1))
    finish(engine, bad, good)
    assert bad.runs[0].finish_reason == "cancelled" and same(good.runs[0], naive(model(None), good.runs[0]))


def test_a_run_may_be_continued_as_soon_as_it_has_ended():
    """The caller is in another thread: the step that ends the run may still be under way."""
    engine, told = loop(model(None)), []

    def tell(run, token):
        if token is None:
            told.append(len(run.tokens))
            run.finish_reason = None

    forced = list(b"fox")
    asked = request(list(b"the quick "), Sampling(max_tokens=3, seed=1), forced=forced, listener=tell)
    engine.add(asked)
    engine.step()
    assert not engine.busy and not engine.tree.held
    assert told == [3] and asked.runs[0].token_ids == forced


def test_closing_ends_what_runs(llm):
    made = LLM(kv_memory="100MB")
    asked = made.prepare("The sea", Sampling(max_tokens=2000, ignore_eos=True))
    tokens = made.follow(asked)
    next(tokens)
    made.close()
    list(tokens)
    assert asked.runs[0].finish_reason == "cancelled"
    with pytest.raises(GlassloopError, match="closed"):
        made.generate("a")


@pytest.mark.parametrize("seed", range(3))
def test_load_and_faults(seed):
    """Two hundred requests at random times, some cancelled, some late, in a tenth of the room they want."""
    rng = random.Random(seed)
    small = model(None)
    engine = EngineThread(loop(small, pages=16, most_running=24), most_waiting=1000)
    shared = [rng.randrange(256) for _ in range(60)]
    asked = []
    for _ in range(200):
        prompt = shared[: rng.randrange(60)] + [rng.randrange(256) for _ in range(rng.randrange(1, 90))]
        late = {"timeout": 0.05} if rng.random() < 0.1 else {}
        sampling = Sampling(max_tokens=rng.randrange(1, 50), seed=rng.randrange(99), **late)
        asked.append(request(prompt, sampling, priority=rng.randrange(3)))
        engine.submit(asked[-1])
        if rng.random() < 0.1:
            engine.cancel(rng.choice(asked))
        if rng.random() < 0.05:
            time.sleep(0.005)
    wait_until(lambda: all(each.ended for each in asked), 120)
    engine.call(engine.loop.tree.check_integrity)
    assert engine.loop.tree.held == 0 and engine.load == (0, 0)
    reasons = [each.runs[0].finish_reason for each in asked]
    assert set(reasons) <= {"stop", "length", "cancelled", "timeout"} and reasons.count("cancelled") > 5
    for each in asked:
        run = each.runs[0]
        expected = naive(small, run)
        assert run.tokens == expected.tokens[: len(run.tokens)]
        if run.finish_reason in ("stop", "length"):
            assert same(run, expected)
    engine.close()


def test_memory_is_flat_over_many_short_requests():
    engine = loop(model(None), pages=40)
    rng = np.random.default_rng(0)

    def some(count):
        for _ in range(count):
            prompt = rng.integers(0, 256, 12).tolist()
            finish(engine, request(prompt, Sampling(max_tokens=3, seed=1)))
        gc.collect()
        return _resident()

    some(1500)
    before = some(500)
    assert some(int(os.environ.get("GLASSLOOP_SHORT_REQUESTS", "3000"))) - before < 12 << 20
    engine.tree.check_integrity()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_ctrl_c_leaves_the_text_so_far():
    program = """
import glassloop, os, signal, threading, time
from glassloop.engine.follow import Interrupted
llm = glassloop.LLM(kv_memory="200MB", draft=False)

def press():
    while llm.statistics()[0].steps < 8:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press, daemon=True).start()
try:
    llm.generate("The sea", glassloop.Sampling(max_tokens=8000, temperature=0, ignore_eos=True))
except Interrupted as stopped:
    (run,) = stopped.runs
    after = llm.generate("The", glassloop.Sampling(max_tokens=1))
    print(run.finish_reason, len(run.tokens) > 3, after.finish_reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["cancelled", "True", "length"], done.stderr
