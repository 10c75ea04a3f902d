"""`diffusion` as an option of `Sampling`: whole answers are written by filling masks; what is written from
left to right refuses it, so it is never ignored."""

from __future__ import annotations

import json
from dataclasses import fields
from threading import Event

import pytest
from diffuse.small import masked_llm
from engine.random_runs import PROMPT, small_llm

from glassloop import GlassloopError, Run, Sampling, SamplingError
from glassloop.decode.diffusion import Diffusion
from glassloop.diffuse.write import by_diffusion
from glassloop.engine.request import Request
from glassloop.ops.native.ops import NativeOps
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.token import Token

SAMPLING = Sampling(seed=3, max_tokens=20, diffusion=8)


@pytest.fixture(scope="module")
def expected():
    return masked_llm().diffuse(PROMPT, Sampling(seed=3, max_tokens=20), diffusion={"block": 8})


def test_a_number_is_the_length_of_a_block_and_a_mapping_has_the_options():
    assert Sampling(diffusion=8).diffusion == Diffusion(block=8) == Sampling(diffusion=Diffusion(8)).diffusion
    asked = Sampling(diffusion={"block": 4, "passes": 2, "threshold": None})
    assert asked.diffusion == Diffusion(4, 2, None)
    again = Sampling.from_dict(json.loads(json.dumps(asked.to_dict())))
    assert again == asked and hash(again.diffusion) == hash(asked.diffusion)
    assert Sampling().diffusion is None


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (0, "diffusion.block"),
        (True, "diffusion"),
        ("8", "diffusion"),
        ({"blok": 8}, "diffusion.blok"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(value, named):
    with pytest.raises(SamplingError) as raised:
        Sampling(diffusion=value)
    assert raised.value.field == named


def test_every_way_to_ask_for_an_answer_writes_the_same_text(expected):
    llm = masked_llm()
    alone = llm.generate(PROMPT, SAMPLING)
    assert alone.tokens == expected.tokens and alone.passes == expected.passes
    assert alone.diffusion == expected.diffusion and alone.sampling == expected.sampling
    assert llm.generate(PROMPT, seed=3, max_tokens=20, diffusion=8).tokens == expected.tokens
    assert [token.id for token in llm.stream(PROMPT, SAMPLING)] == expected.token_ids
    listed = llm.generate([PROMPT, PROMPT], [SAMPLING, Sampling(seed=3, max_tokens=20)])
    assert listed[0].tokens == expected.tokens and listed[1].diffusion is None
    assert llm.diffuse(PROMPT, SAMPLING).tokens == expected.tokens
    several = llm.generate(PROMPT, SAMPLING, n=3)
    assert len(several.samples) == 3 and all(run.passes for run in several.samples)


def test_the_record_replays(expected):
    (loaded,) = from_bytes(to_bytes([masked_llm().generate(PROMPT, SAMPLING)]))
    assert loaded.tokens == expected.tokens
    assert masked_llm().replay(loaded).identical


def test_what_is_written_from_left_to_right_refuses_it():
    llm = masked_llm()
    run = llm.generate(PROMPT, Sampling(seed=1, max_tokens=6))
    for refused in (
        lambda: run.fork(2, diffusion=8),
        lambda: run.explain(2, diffusion=8),
        lambda: llm.solve(PROMPT, "vote", n=2, sampling=SAMPLING, chat=False),
        lambda: llm.infill("a b c", " d e f", tokens=2, sampling=Sampling(diffusion=8)),
        lambda: llm.sharpen(PROMPT, sampling=SAMPLING),
        lambda: llm.repair(run, check=lambda text: False, sampling=SAMPLING),
        lambda: llm.repair(run, proposer="diffusion", sampling=Sampling(diffusion=8)),
        lambda: small_llm().generate(PROMPT, SAMPLING),  # has no masks
        lambda: llm.generate(PROMPT, SAMPLING, beam_width=2),
    ):
        with pytest.raises(GlassloopError, match=r"diffusion|masked"):
            refused()


def test_a_request_that_is_written_by_diffusion_has_all_that_it_was_prepared_with():
    """Fields that come to requests later, too."""
    llm = masked_llm()
    plain = llm.prepare(PROMPT, Sampling(max_tokens=4))
    for each in fields(Request):
        if each.name not in ("prompt_ids", "sampling", "runs"):
            setattr(plain, each.name, object())
    made = by_diffusion(llm, plain, 4)
    for each in fields(Request):
        assert getattr(made, each.name) is getattr(plain, each.name), each.name


def test_the_listener_is_told_of_every_token_and_the_end():
    llm, told = masked_llm(), list[Token | None]()
    ended = Event()

    def listen(run: Run, token: Token | None) -> None:
        told.append(token)
        if token is None:
            ended.set()

    request = llm.prepare(PROMPT, Sampling(seed=1, max_tokens=12, diffusion=4), listener=listen)
    llm.submit(request)
    assert ended.wait(60)
    assert told == [*request.runs[0].tokens, None] and len(told) > 1


def test_a_block_that_is_too_large_for_a_step_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", 16)
    with pytest.raises(GlassloopError, match="makes a pass of 9 rows; 1 to 8 are expected") as caught:
        masked_llm().generate(PROMPT, Sampling(max_tokens=20, diffusion=9))
    assert caught.value.field == "diffusion.block"
    assert masked_llm().generate(PROMPT, Sampling(max_tokens=20, diffusion=8, ignore_eos=True)).tokens
    with pytest.raises(GlassloopError, match="makes a pass of 9 rows") as caught:
        masked_llm().infill("the quick", "fox", 9, proposer="diffusion")
    assert caught.value.field == "tokens"
