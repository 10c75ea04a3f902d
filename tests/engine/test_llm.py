"""The loop on the default model: what goes in, what comes out, how it ends."""

from __future__ import annotations

import gc
import json
import math
import threading
import weakref

import pytest

from glassloop import LLM, GlassloopError, Sampling, TextError
from glassloop.decode.partial_json import partial_json
from glassloop.decode.stage import REGISTER, stage

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


def test_it_knows_the_capital_of_france(llm):
    run = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=4))
    assert run.text.startswith(" Paris")
    assert run.finish_reason == "length" and run.stop_reason == "max_tokens" and len(run.token_ids) == 4
    assert run.usage.prompt_tokens == 5 and run.usage.total_tokens == 9
    assert run.usage.context_left == llm.config.context - 9


def test_text_and_token_ids_are_the_same_prompt(llm):
    sampling = Sampling(seed=7, max_tokens=6)
    ids = llm.tokenizer.encode("Once upon a time")
    assert llm.generate(ids, sampling).token_ids == llm.generate("Once upon a time", sampling).token_ids


def test_the_seed_fixes_the_answer_and_is_recorded(llm):
    first = llm.generate("I think", Sampling(max_tokens=8))
    again = llm.generate("I think", Sampling(max_tokens=8, seed=first.seed))
    other = llm.generate("I think", Sampling(max_tokens=8, seed=first.seed + 1))
    assert first.token_ids == again.token_ids != other.token_ids


def test_streamed_or_not_the_tokens_are_the_same(llm):
    sampling = Sampling(seed=3, max_tokens=8)
    run = llm.generate("The sea", sampling)
    streamed = list(llm.stream("The sea", sampling))
    assert streamed == run.tokens
    assert b"".join(token.bytes for token in streamed).decode("utf-8", "replace") == run.text


def test_every_token_has_its_reasons(llm):
    sampling = Sampling(seed=3, max_tokens=8, top_k=20, temperature=1.3, logprobs=7)
    for token in llm.stream("The sea", sampling):
        assert token.logprob <= 0 and token.raw_logprob <= 0 and 0 <= token.entropy < math.log(49152)
        assert 1 <= token.rank <= 20 and token.rank == token.rank_after and token.margin > 0
        assert len(token.alternatives) == 7
        raw = [alternative.raw_logprob for alternative in token.alternatives]
        assert raw == sorted(raw, reverse=True) and sum(map(math.exp, raw)) <= 1
        if token.rank <= 7:
            mine = token.alternatives[token.rank - 1]
            assert (mine.id, mine.text) == (token.id, llm.tokenizer.piece(token.id))
            assert mine.logprob == pytest.approx(token.logprob, abs=1e-12)
            assert mine.raw_logprob == pytest.approx(token.raw_logprob, abs=1e-12)


def test_a_run_is_plain_json(llm):
    run = llm.generate("The sea", Sampling(top_k=1, max_tokens=2))
    told = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert told["tokens"][0]["margin"] is None and told["tokens"][0]["alternatives"][1]["logprob"] is None
    assert Sampling.from_dict(told["sampling"]) == run.sampling


def test_the_end_of_sequence_token_ends_it_and_is_not_part_of_the_text(llm):
    run = llm.generate(CHAT, Sampling(temperature=0, max_tokens=200))
    assert run.finish_reason == "stop" and run.stop_reason == "<|im_end|>"
    assert "<|im_end|>" not in run.text and run.text
    assert run.end is not None and run.end.id in llm.tokenizer.eos_ids and run.end.raw_logprob < 0
    size = len(run.tokens)
    with_end = llm.generate(CHAT, Sampling(temperature=0, max_tokens=200, include_stop=True))
    assert with_end.text == run.text + "<|im_end|>" and with_end.end is None
    longer = llm.generate(CHAT, Sampling(temperature=0, max_tokens=size + 3, ignore_eos=True))
    assert longer.finish_reason == "length" and len(longer.tokens) == size + 3
    later = llm.generate(CHAT, Sampling(temperature=0, max_tokens=size + 20, min_tokens=size + 2))
    assert len(later.tokens) >= size + 2 and later.token_ids[:size] == run.token_ids


def test_stop_strings_end_it_and_nothing_of_them_is_seen(llm):
    whole = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=24))
    for start in (3, 9, 20):
        stop = whole.text[start : start + 7]
        cut = whole.text.index(stop)
        sampling = Sampling(temperature=0, max_tokens=24, stop=["zz", stop])
        request = llm.prepare("The capital of France is", sampling)
        run = request.runs[0]
        seen = "".join(token.text for token in llm.follow(request))
        assert run.text == seen == whole.text[:cut]
        assert (run.finish_reason, run.stop_reason) == ("stop", stop)
        included = Sampling(temperature=0, max_tokens=24, stop=stop, include_stop=True)
        assert llm.generate("The capital of France is", included).text == whole.text[: cut + 7]


def test_the_beginning_of_a_stop_string_that_did_not_come_is_text(llm):
    whole = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=6))
    stop = whole.text[-2:] + "\x00"
    run = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=6, stop=stop))
    assert run.text == whole.text and run.tail == whole.text[-2:]


def test_a_stop_token_ends_it(llm):
    whole = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=6))
    run = llm.generate(
        "The capital of France is",
        Sampling(temperature=0, max_tokens=6, stop_token_ids=[whole.token_ids[3], 9]),
    )
    assert run.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[3])]
    assert run.finish_reason == "stop" and run.stop_reason == llm.tokenizer.piece(whole.token_ids[3])


def test_a_loop_ends_it(llm):
    one = Sampling(temperature=0, max_tokens=50, logit_bias={28: 100}, stop_on_repetition=5)
    run = llm.generate("Well", one)
    assert run.text == ",,,,," and run.finish_reason == "repetition"
    assert run.stop_reason == "1 token 5 times in a row"


def test_time_ends_it(llm):
    sampling = Sampling(temperature=0, max_tokens=3000, ignore_eos=True, timeout=1.0)
    runs = [llm.generate("Once upon", sampling)]
    while not runs[-1].tokens and len(runs) < 5:  # the machine may have stood still before the first token
        runs.append(llm.generate("Once upon", sampling))
    assert all(run.finish_reason == "timeout" for run in runs) and 1 <= len(runs[-1].tokens) < 3000


def test_time_ends_a_long_prompt_too(llm):
    run = llm.generate([504, 3575, 282] * 900, Sampling(timeout=1e-6))
    assert run.finish_reason == "timeout" and run.tokens == [] and run.text == ""


def test_a_json_that_was_cut_off_is_reported_as_length_and_can_be_read(llm):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    whole = llm.generate("The capital of France as JSON: ", Sampling(seed=1, json_schema=schema))
    assert whole.finish_reason == "stop" and "city" in json.loads(whole.text)
    cut = len(whole.tokens) - 2
    part = llm.generate(
        "The capital of France as JSON: ", Sampling(seed=1, json_schema=schema, max_tokens=cut)
    )
    assert part.finish_reason == "length" and part.token_ids == whole.token_ids[:cut]
    with pytest.raises(json.JSONDecodeError):
        json.loads(part.text)
    assert isinstance(partial_json(part.text), dict)


def test_a_run_that_is_left_early_is_cancelled(llm):
    request = llm.prepare("One, two, three,", Sampling(temperature=0))
    run, loop = request.runs[0], llm.follow(request)
    next(loop), next(loop)
    loop.close()
    assert run.finish_reason == "cancelled" and len(run.tokens) >= 2


def test_a_run_that_fails_says_so(llm):
    try:

        @stage("fails", kind="mask")
        def fails(candidates, step):
            raise ZeroDivisionError

        request = llm.prepare("One", Sampling(stages=["fails"]))
        run = request.runs[0]
        with pytest.raises(ZeroDivisionError):
            list(llm.follow(request))
        assert run.finish_reason == "error"
    finally:
        REGISTER.pop("fails", None)
    assert llm.generate("One", Sampling(max_tokens=1)).finish_reason == "length"


def test_a_full_context_ends_it(llm, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(llm.requests, "config", replace(llm.config, context=8))
    run = llm.generate([504] * 5, Sampling(temperature=0, max_tokens=100))
    assert run.finish_reason == "length" and run.stop_reason == "context"
    assert len(run.tokens) == 3 and run.usage.context_left == 0
    with pytest.raises(TextError, match=r"8 tokens; .* room for 8"):
        llm.generate([504] * 8)


@pytest.mark.parametrize("prompt", ["", [], [-1], [49152], [["a"]], [1.5], 7, None])
def test_a_bad_prompt_is_refused(llm, prompt):
    with pytest.raises(GlassloopError, match="prompt"):
        llm.generate(prompt)


@pytest.mark.parametrize("weights", ["q8", "q4", "f32"])
def test_weights_can_be_brought_to_another_format_on_load(weights):
    llm = LLM(weights=weights)
    run = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=1))
    assert run.text == " Paris"


def test_an_unknown_weight_format_is_an_error():
    with pytest.raises(GlassloopError, match="weights is 'q3'; one of q8, q4, f32"):
        LLM(weights="q3")


def test_a_fork_of_a_run_with_a_scored_prompt_keeps_its_tokens_once(llm):
    run = llm.generate("The sea", Sampling(seed=3, max_tokens=6, prompt_logprobs=2))
    fork = llm.fork(run, 3, temperature=0.9)
    assert len(fork.tokens) == 6 and fork.token_ids[:3] == run.token_ids[:3]
    assert fork.prompt_tokens == run.prompt_tokens
    assert llm.fork(run, 0, temperature=1.1).prompt_tokens == run.prompt_tokens


def test_the_last_reference_gives_everything_back(tmp_path, request):
    """Without `close()`: models that are dropped take their memory and their threads with them."""
    from hostile.tiny import write_tiny

    path, dropped = write_tiny(tmp_path / "tiny.gguf"), []
    gc.collect()
    gc.freeze()  # what other tests have left need not be looked at each time
    request.addfinalizer(gc.unfreeze)
    threads = threading.active_count()
    for number in range(20):
        llm = LLM(path, kv_memory="4MB", draft=path if number % 3 == 0 else True)
        run = llm.generate("x", Sampling(max_tokens=2))
        run.explain(0)
        if number % 2:
            llm.lens.neighbours(3)
        dropped += [weakref.ref(llm), weakref.ref(llm.transformer), weakref.ref(llm.engine)]
        del llm, run
        gc.collect()
    assert not any(each() is not None for each in dropped)
    assert threading.active_count() <= threads, threading.enumerate()
