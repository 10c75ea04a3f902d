"""Chains of the model's own drafter: they change when tokens come, never which, and stop where they do not
pay."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from engine.small import drafting_model, finish, loop, model, naive, request, same

from glassloop import LLM
from glassloop.decode.luck import branch_key, luck_key, luck_of
from glassloop.decode.sampling import Sampling
from glassloop.engine.drafting import chain_drafts
from glassloop.engine.drafting.chain_drafts import ChainDrafts
from glassloop.engine.drafting.lookup import Lookup
from glassloop.engine.loop import Loop
from glassloop.model import drafter
from glassloop.model.cache import Branches
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, BatchError
from glassloop.ops.drafting import ChainRequest

FEW = tuple(range(97, 103))  # tokens: of so few, a random drafter guesses some right


def _eager(engine: Loop, monkeypatch: pytest.MonkeyPatch, lookup: bool = False) -> ChainDrafts:
    """Lets every chain be drawn and computed, whatever it costs; without `lookup`, nothing else is
    proposed."""
    drafts = engine.drafts
    assert isinstance(drafts, ChainDrafts)
    monkeypatch.setattr(drafts.step_cost, "saw", lambda rows, seconds: None)
    monkeypatch.setattr(drafts.step_cost, "best", lambda *given: (1e-9, 1))
    monkeypatch.setattr(chain_drafts, "_LEAST_GAIN", 0.0)
    monkeypatch.setattr(chain_drafts, "_MOST_ROWS", 1000)
    if not lookup:
        monkeypatch.setattr(Lookup, "propose", lambda *given: (0.0, []))
    return drafts


@pytest.mark.parametrize("seed", range(12))
def test_a_chain_changes_no_token(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    small = drafting_model(FEW)
    engine = loop(small, pages=int(rng.choice([14, 60])), most_running=int(rng.integers(1, 6)))
    _eager(engine, monkeypatch, lookup=seed % 3 == 0)
    options = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 1.3, "top_k": 4, "top_p": 0.9},
        {"temperature": 0.5, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"regex": "[a-f]{30,40}", "temperature": 0.7, "allowed_token_ids": None},
        {"n": 3, "temperature": 1.0, "prompt_logprobs": 2},
    ]
    requests = [
        request(
            rng.integers(0, 256, int(rng.integers(1, 60))).tolist(),
            Sampling(**{"max_tokens": 40, "seed": seed, "allowed_token_ids": list(FEW), **each}),
        )
        for each in options
    ]
    runs = finish(engine, *requests)
    assert all(same(run, naive(small, run)) for run in runs)
    assert all(same(naive(model(), run), naive(small, run)) for run in runs[:2])  # the drafter adds no bit
    assert sum(run.drafts.accepted for run in runs) > 20
    assert sum(token.refused is not None for run in runs for token in run.tokens) > 20
    engine.tree.check_integrity()
    assert engine.tree.held == 0


def test_chains_begin_where_their_runs_are(monkeypatch):
    """Each chain has the last token of its run, the state of the token before, and luck of its own
    position."""
    small = drafting_model(FEW)
    engine = loop(small, pages=60)
    drafts = _eager(engine, monkeypatch)
    assert small.chain is not None
    draw, calls = small.chain.draw, []

    def watched(batch, pages, states, requests):
        calls.append((batch, states.copy(), requests))
        return draw(batch, pages, states, requests)

    monkeypatch.setattr(drafts._chain, "draw", watched)
    sampling = Sampling(temperature=0.8, max_tokens=30, seed=7, allowed_token_ids=list(FEW))
    runs = finish(engine, *[request(list(text), sampling) for text in (b"one", b"the other")])
    checked = 0
    for batch, states, requests in calls:
        for row, (token, position, asked) in enumerate(
            zip(batch.tokens, batch.positions, requests, strict=True)
        ):
            texts = [[*run.prompt_ids, *run.token_ids] for run in runs]
            expected = [_states(small, text[: position + 1])[1][-1] for text in texts]
            (text,) = (
                text for text, state in zip(texts, expected, strict=True) if (state == states[row]).all()
            )
            assert text[position + 1] == token and asked.position == position + 2
            assert asked.branch_key == branch_key(7, 0) and asked.scale == 1 / 0.8
            checked += 1
    assert checked > 20 and any(len(requests) == 2 for _, _, requests in calls)


def _states(small: Transformer, tokens: list[int]) -> tuple[Branches, np.ndarray]:
    branches = Branches(small, len(tokens) + 32)
    batch = Batch.of([(branches._table(0), 0, tokens)], [len(tokens)])
    return branches, small.forward_with_states(batch, branches.pages)[1]


def _draw(small: Transformer, tokens: list[int], **changed) -> object:
    """A chain after these tokens, of which all but the last are computed."""
    branches, states = _states(small, tokens[:-1])
    assert small.chain is not None
    most = changed.pop("most", 4)
    given = ChainRequest(
        None, len(tokens), 1.0, most, [1.0] * small.chain.margins, [0.0] * most, [0.0] * most
    )
    batch = Batch.of([(branches._table(0), len(tokens) - 2, tokens[-1:])])
    (drawn,) = small.chain.draw(batch, branches.pages, states[-1:], [given._replace(**changed)])
    return drawn


def test_luck_draws_as_the_decoder_would():
    """With a scale near 0, luck alone decides; with none, the logits do."""
    small, tokens = drafting_model(), list(b"a chain of drafts")
    key = branch_key(5, 3)
    drawn = _draw(small, tokens, branch_key=key, scale=1e-6)
    ids = np.arange(0, 257, 2)
    expected = [int(ids[luck_of(luck_key(5, 3, len(tokens) + at), ids).argmax()]) for at in range(4)]
    assert drawn.tokens == expected and drawn.kept == 4
    assert _draw(small, tokens).tokens == _draw(small, tokens, scale=3.0).tokens != expected


def test_a_chain_stops_when_it_is_unsure():
    small, tokens = drafting_model(), list(b"a chain of drafts")
    whole = _draw(small, tokens)
    assert len(whole.tokens) == len(whole.margins) == whole.kept == 4
    chances = [0.5] * 8
    drawn = _draw(small, tokens, chances=chances, keep=[0.5, 0.25, 0.2, 0.0])
    assert drawn.kept == 2 and drawn.tokens == whole.tokens[:3]  # the third was drawn, and is not worth a row
    drawn = _draw(small, tokens, chances=chances, following=[0.5, 0.4, 0.0, 0.0])
    assert drawn.kept == 2 and drawn.tokens == whole.tokens[:2]  # after the second, none was worth drawing
    assert _draw(small, tokens, most=1).tokens == whole.tokens[:1]


def test_rows_of_a_batch_are_drawn_as_if_alone():
    small = drafting_model()
    assert small.chain is not None
    texts = [list(b"one"), list(b"two and more"), list(b"three " * 9)]
    alone = [_draw(small, text) for text in texts]
    branches = Branches(small, 100, len(texts))
    works = [(branches._table(number), 0, text[:-1]) for number, text in enumerate(texts)]
    states = small.forward_with_states(Batch.of(works), branches.pages)[1]
    batch = Batch.of([(branches._table(n), len(t) - 2, t[-1:]) for n, t in enumerate(texts)])
    requests = [ChainRequest(None, len(t), 1.0, 4, [1.0] * 8, [0.0] * 4, [0.0] * 4) for t in texts]
    assert small.chain.draw(batch, branches.pages, states, requests) == alone
    with pytest.raises(BatchError, match="2 chains"):
        small.chain.draw(batch, branches.pages, states, requests[:2])
    wrong = batch._replace(tokens=[1, 2, 257])
    with pytest.raises(BatchError, match="token id 257"):
        small.chain.draw(wrong, branches.pages, states, requests)


def test_drafts_that_are_never_right_are_seldom_made(monkeypatch):
    monkeypatch.setattr(Lookup, "propose", lambda *given: (0.0, []))
    engine = loop(drafting_model(tuple(range(10))))
    drafts = engine.drafts
    assert isinstance(drafts, ChainDrafts)
    monkeypatch.setattr(drafts.step_cost, "saw", lambda rows, seconds: None)  # the estimate of costs holds
    sampling = Sampling(
        temperature=0, max_tokens=120, ignore_eos=True, allowed_token_ids=list(range(50, 250))
    )
    (run,) = finish(engine, request([1, 2, 3], sampling))
    first = chain_drafts._FIRST_CHAINS
    assert first <= drafts.chains <= first + 120 // chain_drafts._TRIED_EVERY
    assert run.drafts.accepted == 0 and drafts.chances[True].average < 0.5
    assert same(run, naive(drafting_model(tuple(range(10))), run))


def test_no_chain_is_drawn_for_many_streams():
    """With more streams than `_MOST_ROWS`, rows of drafts cost what they save; with one, chains are drawn."""
    for streams in (1, chain_drafts._MOST_ROWS + 1):
        engine = loop(drafting_model(FEW))
        drafts = engine.drafts
        assert isinstance(drafts, ChainDrafts)
        sampling = Sampling(max_tokens=24, allowed_token_ids=list(FEW))
        runs = finish(engine, *(request([97 + number], sampling) for number in range(streams)))
        assert all(same(run, naive(drafting_model(FEW), run)) for run in runs)
        # The rows of the first step are not known when its chains are drawn.
        assert drafts.chains > streams if streams == 1 else drafts.chains <= streams


PACKAGED = sorted((Path(drafter.__file__).parent / "drafters").glob("drafter-*.gguf"))


def test_the_default_model_has_a_drafter_that_is_often_right():
    """With its own drafter, the default model writes the same tokens in fewer steps: alone, with several
    samples, after a fork, with a grammar and with penalties."""
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    samplings = [
        Sampling(temperature=0, max_tokens=48),
        Sampling(temperature=0.8, max_tokens=48, seed=3, n=2),
        Sampling(temperature=0.8, max_tokens=24, seed=4, regex="[A-Z][a-z ,.]+"),
        Sampling(temperature=0.7, max_tokens=32, seed=5, repetition_penalty=1.2, top_p=0.9),
    ]
    with LLM(kv_memory="100MB") as drafting, LLM(draft=False, kv_memory="100MB") as plain:
        assert plain.transformer.chain is None and drafting.transformer.chain is not None
        assert drafting.drafter == "drafter"
        accepted = steps = 0
        for sampling in samplings:
            one, other = (llm.generate(asked, sampling) for llm in (drafting, plain))
            assert [each.tokens for each in one.samples] == [each.tokens for each in other.samples]
            accepted += sum(each.drafts.accepted for each in one.samples)
            steps += sum(len(each.tokens) for each in one.samples)
        assert accepted > 0.2 * steps
        first = drafting.generate(asked, samplings[0])
        forks = [llm.fork(first, 4, temperature=0.9) for llm in (drafting, plain)]
        assert forks[0].tokens == forks[1].tokens


def test_the_drafter_of_the_package_is_the_one_of_its_recipe():
    assert PACKAGED
    for file in PACKAGED:
        recipe = json.loads(file.with_suffix(".json").read_text())
        assert recipe["sha256"] == sha256(file.read_bytes()).hexdigest() and recipe["file"] == file.name
        assert file.stat().st_size < 8_000_000 and recipe["text"]["sha256"]
