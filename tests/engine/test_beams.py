"""Beam search: against transformers' own, against greedy, and with everything else."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from engine.small import finish, loop, model, naive, request, tokenizer
from model.tiny import TINY, VOCAB, make

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.engine.beams import Beams
from glassloop.engine.loop import Loop
from glassloop.engine.request import Request, runs_of
from glassloop.errors import SamplingError
from glassloop.model.loader import ModelFiles
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.reference import ReferenceOps
from glassloop.trace.run import Run


class _Plain:
    """A tokenizer for a model whose tokens are mere numbers."""

    eos_ids = (2,)
    vocab_size = VOCAB
    missing_ids = ()

    def token_bytes(self, token: int) -> bytes:
        return f"<{token}>".encode()

    def piece(self, token: int) -> str:
        return f"<{token}>"


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("width", [2, 4])
def test_it_equals_that_of_transformers(tmp_path, width, length_penalty, early_stopping):
    tiny = next(each for each in TINY if each.name == "llama")
    theirs = make(tiny, tmp_path)
    with torch.no_grad():  # ends come often enough to matter
        theirs.lm_head.weight *= 8
        theirs.lm_head.weight[2] *= 1.4
    theirs.save_pretrained(tmp_path)
    small = ModelFiles(tmp_path).transformer(ReferenceOps())
    plain = _Plain()
    memory = 200 * small.page_bytes
    for seed in range(6):
        prompt = np.random.default_rng(seed).integers(3, VOCAB, 9).tolist()
        sampling = Sampling(
            beam_width=width,
            n=width,
            max_tokens=12,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        engine = Loop(small, plain, plain.piece, memory)
        asked = Request(
            prompt,
            sampling,
            runs_of(sampling, lambda seed, number: Run("tiny", prompt, seed, 64, sampling, sample=number)),  # noqa: B023
            built=Compiled.of(sampling, VOCAB, plain),
        )
        runs = finish(engine, asked)
        expected = theirs.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=12,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=2,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        ours = [run.token_ids + ([run.end.id] if run.end else []) for run in runs]
        wanted = [_up_to_the_end(row) for row in expected.sequences[:, len(prompt) :].tolist()]
        assert ours == wanted, f"seed {seed}"
        scores = [
            sum(token.logprob for token in [*run.tokens, *([run.end] if run.end else [])])
            / len(tokens) ** length_penalty
            for run, tokens in zip(runs, ours, strict=True)
        ]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-3)
        assert engine.tree.held == 0
        engine.tree.check_integrity()


def _up_to_the_end(row: list[int]) -> list[int]:
    return row[: row.index(2) + 1] if 2 in row else row


@pytest.mark.parametrize("seed", range(8))
def test_one_beam_is_greedy_and_four_are_no_worse(seed):
    small = model(None)
    prompt = np.random.default_rng(seed).integers(0, 256, 20).tolist()
    greedy = naive(small, request(prompt, Sampling(temperature=0, max_tokens=12, ignore_eos=True)).runs[0])
    one = request(prompt, Sampling(max_tokens=12, ignore_eos=True))
    engine = loop(small)
    # A width of 1 asks for no search, so the search is asked for by hand.
    task = Beams(
        one,
        (0, 0),
        engine.decoder(one.runs[0], prompt, one.compiled),
        tokenizer(),
        tokenizer().piece,
        engine.tree,
    )
    engine._tasks[one] = [task]
    engine.scheduler.add(task)
    while engine.busy:
        engine.step()
    assert one.runs[0].token_ids == greedy.token_ids
    (best, *_) = finish(engine, request(prompt, Sampling(beam_width=4, max_tokens=12, ignore_eos=True)))
    assert best.logprob >= greedy.logprob - 1e-9


@pytest.mark.parametrize(("seed", "pages", "rows"), [(3, 14, 512), (4, 14, 16), (5, 15, 512), (6, 16, 16)])
def test_the_search_is_the_same_beside_others_and_in_little_room(seed, pages, rows, monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", rows)
    small = model(40)
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 256, 50).tolist() for _ in range(4)]
    sampling = Sampling(beam_width=3, n=2, max_tokens=24, repetition_penalty=1.1)
    alone = [finish(loop(small), request(prompt, sampling)) for prompt in prompts]
    engine = loop(small, pages=pages)
    others = [request(prompt[:30], Sampling(max_tokens=40, seed=1)) for prompt in prompts]
    asked = [request(prompt, sampling) for prompt in prompts]
    finish(engine, *[each for pair in zip(others, asked, strict=True) for each in pair])
    for each, expected in zip(asked, alone, strict=True):
        assert [run.tokens for run in each.runs] == [run.tokens for run in expected]
    assert all(run.tokens == naive(small, run).tokens for each in others for run in each.runs)
    assert sum(run.timings.preempted for each in [*asked, *others] for run in each.runs) > 0
    engine.tree.check_integrity()


def test_the_record_has_the_whole_tree():
    engine = loop(model(None))
    best, second = finish(engine, request([65] * 10, Sampling(beam_width=4, n=2, max_tokens=8)))
    nodes = {beam.number: beam for beam in best.beams}
    fates = {beam.fate for beam in best.beams}
    assert {"pruned", "chosen"} <= fates <= {"live", "pruned", "finished", "chosen"}
    for run in (best, second):
        ends = [beam for beam in best.beams if beam.fate == "chosen"]
        ways = []
        for end in ends:
            way, node = [], end
            while True:
                way.append(node.id)
                if node.parent is None:
                    break
                node = nodes[node.parent]
            ways.append(way[::-1])
        assert [*run.token_ids, *([run.end.id] if run.end else [])] in ways
    assert all(token.source == "beam" for token in best.tokens)
    json.dumps(best.to_dict(), allow_nan=False)


def test_a_grammar_and_stop_strings_still_hold():
    engine = loop(model(None))
    runs = finish(engine, request([65, 66], Sampling(beam_width=4, n=4, regex="(ab|cd){2}", max_tokens=12)))
    assert sorted({run.text for run in runs}) == sorted(["abab", "abcd", "cdab", "cdcd"])
    (run,) = finish(engine, request([65, 66], Sampling(beam_width=3, regex="(ab|cd){6}", stop=["d"])))
    assert "d" not in run.text and run.finish_reason == "stop"
    # Fewer texts than were asked for: as many as there are.
    assert len(finish(engine, request([65], Sampling(beam_width=4, n=4, choice=["x", "y"])))) == 2


def test_more_results_than_beams_is_an_error():
    with pytest.raises(SamplingError, match="n is 5; at most beam_width, 4"):
        Sampling(n=5, beam_width=4)
