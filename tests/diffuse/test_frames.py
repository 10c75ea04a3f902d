"""Frames: what is shown after each pass is what the record says, in any order that it is asked for."""

from __future__ import annotations

import pytest
from diffuse.small import MaskedLLM, masked_llm
from engine.random_runs import PROMPT, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import GlassloopError, Run, Sampling
from glassloop.decode.diffusion import Diffusion
from glassloop.diffuse.frames import Frames, frames
from glassloop.diffuse.write import by_diffusion, follow_passes
from glassloop.record.passes import MOST_CHANGES


@pytest.fixture(scope="module")
def run() -> Run:
    sampling = Sampling(seed=3, temperature=0.9, max_tokens=20, top_k=40)
    options = Diffusion(block=8, threshold=0.6, revise=2)
    return masked_llm().diffuse(PROMPT, sampling, diffusion=options)


def _naive(run: Run, number: int) -> dict[int, int | None]:
    """Returns the tokens of the block of a pass by their places, from the record alone."""
    last = run.passes[number]
    known: dict[int, int | None] = {last.first + place: None for place in range(last.width)}
    for record in run.passes[: number + 1]:
        if record.first == last.first:
            known |= {each.at: None for each in record.unfilled}
            known |= {each.at: each.id for each in record.filled}
    return known


def test_a_frame_has_what_is_known_after_its_pass(run):
    llm = masked_llm()
    shown = list(frames(run, llm.piece))
    assert len(shown) == len(run.passes) > 6
    for frame, record in zip(shown, run.passes, strict=True):
        naive = _naive(run, record.number)
        assert {frame.first + place: cell.id for place, cell in enumerate(frame.cells)} == naive
        for at, cell in enumerate(frame.cells, frame.first):
            filled = next((each for each in record.filled if each.at == at), None)
            taken = next((each for each in record.unfilled if each.at == at), None)
            assert cell.changed == (filled is not None or taken is not None)
            assert cell.text == (None if cell.id is None else llm.piece(cell.id))
            assert cell.taken_back == (None if taken is None else llm.piece(taken.id))
            assert cell.reason == (None if taken is None else taken.why)
            if filled is not None:
                assert (cell.confidence, cell.entropy) == (filled.confidence, filled.entropy)
                assert cell.filled_by == record.number
    blocks = {frame.first: frame for frame in shown}
    assert [cell.id for frame in blocks.values() for cell in frame.cells][: len(run.tokens)] == run.token_ids


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_frames_do_not_depend_on_the_order_in_which_they_are_asked_for(run, data):
    piece = masked_llm().piece
    expected = list(frames(run, piece))
    maker = Frames(run, piece)
    for number in data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=30)):
        assert maker.at(number) == expected[number]


def test_a_frame_ends_where_the_text_ends():
    llm = masked_llm()
    options = Diffusion(block=12, threshold=None, most=2)
    plain = llm.diffuse(PROMPT, Sampling(seed=1, max_tokens=24), diffusion=options)
    end = plain.token_ids[5]
    run = llm.diffuse(PROMPT, Sampling(seed=1, max_tokens=24, stop_token_ids=[end]), diffusion=options)
    assert run.finish_reason == "stop" and run.end is not None
    *_, last = frames(run, llm.piece)
    assert last.cells[-1].id == end and None not in [cell.text for cell in last.cells]
    assert last.first + len(last.cells) == len(run.tokens) + 1 < 12
    by_eos = Frames(plain, llm.piece, eos_ids=[end]).at(len(run.passes) - 1)
    assert by_eos.cells[-1].id == end


def test_passes_are_followed_and_leaving_cancels():
    llm = masked_llm()
    request = by_diffusion(llm, llm.prepare(PROMPT, Sampling(seed=1, max_tokens=100, n=2)), {"block": 8})
    for seen, (run, record) in enumerate(follow_passes(llm.engine, request)):
        assert run.passes[record.number] is record
        if seen == 9:
            break
    llm.engine.call(llm.engine.loop.tree.check_integrity)
    assert request.ended and llm.engine.loop.tree.held == 0
    assert {run.finish_reason for run in request.runs} == {"cancelled"}
    first = request.runs[0]
    assert (
        first.tokens
        == llm.diffuse(PROMPT, Sampling(seed=1, max_tokens=100), diffusion={"block": 8}).tokens[
            : len(first.tokens)
        ]
    )
    verdict = first.replay()
    assert verdict.identical and verdict.tokens == len(first.tokens)


def test_samples_are_told_apart_and_each_is_what_it_is_alone():
    llm = masked_llm()
    sampling = Sampling(seed=5, max_tokens=20, n=3)
    runs = llm.diffuse(PROMPT, sampling, diffusion={"block": 8}).samples
    assert len({tuple(run.token_ids) for run in runs}) == 3
    for run in runs:
        assert run.replay().identical


def test_a_record_is_bounded(monkeypatch):
    """A run with more changes than a file can have ends before."""
    monkeypatch.setattr("glassloop.diffuse.write.MOST_CHANGES", 10)
    run = masked_llm().diffuse(PROMPT, Sampling(seed=1, max_tokens=30), diffusion={"block": 4, "revise": 2})
    changes = sum(len(each.filled) + len(each.unfilled) for each in run.passes)
    assert run.finish_reason == "length" and run.stop_reason == "10 changes"
    assert 10 <= changes < 20 and MOST_CHANGES > 10_000


def test_a_function_that_is_told_of_passes_cannot_end_the_engine():
    made = MaskedLLM()

    def leave(run, record):
        raise SystemExit

    with pytest.raises(GlassloopError, match=r"code of the request called sys\.exit\(\)"):
        made.diffuse(PROMPT, Sampling(max_tokens=8), on_pass=leave)
    with pytest.raises(GlassloopError, match="was made on the engine's thread"):
        made.diffuse(PROMPT, Sampling(max_tokens=8), on_pass=lambda run, record: made.generate(PROMPT))
    assert (
        made.generate(PROMPT, Sampling(seed=1)).tokens
        == small_llm().generate(PROMPT, Sampling(seed=1)).tokens
    )
    made.close()
