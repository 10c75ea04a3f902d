"""Guesses: they change when tokens come, never which; and they stop where they do not pay."""

from __future__ import annotations

import numpy as np
import pytest
from engine.small import EOS, finish, loop, model, naive, request, same, tokenizer

from glassloop import LLM, GlassloopError, Sampling
from glassloop.engine.draft_model import DraftModel
from glassloop.engine.drafts import Chances, Grams, Lookup, Memory, Pace, gram_of


def test_grams_find_the_longest_agreement():
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(0, 3, rng.integers(4, 60)).tolist()
        grams = Grams()
        grams.extend(tokens[:10])
        grams.extend(tokens[10:])
        agreed, following = grams.longest(tokens, gram_of(tokens))
        places = [place for place in range(3, len(tokens)) if tokens[place - 3 : place] == tokens[-3:]]
        assert (agreed > 0) == bool(places)
        if agreed:
            found = [p for p in places if tokens[p : p + 24] == following]
            assert any(tokens[p - agreed : p] == tokens[-agreed:] for p in found if p >= agreed)


def test_memory_stops_at_the_border_of_a_run():
    memory = Memory()
    memory.add([1, 2, 3, 4])
    memory.add([5, 6, 7])
    for tokens, found in (([0, 1, 2, 3], (3, [4])), ([2, 3, 4], (0, []))):
        assert memory.longest(tokens, gram_of(tokens)) == found


def test_a_guess_is_as_long_as_it_pays():
    pace = Pace()
    assert pace.worth(0.02, 24) == 0 and pace.worth(0.97, 24) >= 8 and pace.worth(0.97, 2) == 2
    pace.saw(1, 1.0)
    pace.saw(9, 8.5)  # rows that cost as much as steps: no guess is worth it
    assert pace.worth(0.8, 8) == 0
    chances = Chances()
    for _ in range(30):
        chances.saw(3, right=False)
    assert chances.of(3) < 0.05 < chances.of(4)


def test_repetition_is_noticed_and_drafted():
    small = model(None)
    prompt = [65, 66, 67, 68, 69, 70] * 6
    sampling = Sampling(
        temperature=0, max_tokens=60, ignore_eos=True, logit_bias=dict.fromkeys(range(65, 71), 30.0)
    )
    asked = request(prompt, sampling)
    engine = loop(small)
    engine._pace.saw = lambda rows, seconds: (
        None
    )  # what rows cost by the rule of thumb, not on a busy machine
    (run,) = finish(engine, asked)
    assert same(run, naive(small, run))
    assert run.drafts.accepted > 20 and engine.counters.steps < 45
    assert [token.source for token in run.tokens].count("draft") == run.drafts.accepted
    (again,) = finish(engine, request(prompt, sampling))  # now an earlier run knows it all
    assert again.tokens == run.tokens and again.drafts.accepted >= run.drafts.accepted


class _Slipping:
    """Knows what will come, but for a slip now and then, and remembers what it has proposed."""

    name = "lookup"

    def __init__(self, rng, expected):
        self._rng, self._expected = rng, expected
        self.proposals = []  # (the place of its first token, the guess)

    def guess(self, tokens, room, decoder):
        place = decoder.history.generated_length
        right = self._expected[place : place + min(room, int(self._rng.integers(0, 9)))]
        guess = [token if self._rng.random() < 0.8 else (token + 1) % 256 for token in right]
        self.proposals.append((place, guess))
        return guess

    def learn(self, tokens):
        pass


@pytest.mark.parametrize("seed", range(12))
def test_every_guess_that_was_refused_is_kept_where_it_was_and_no_other(seed):
    small, rng = model(None), np.random.default_rng(seed)
    sampling = Sampling(max_tokens=50, seed=seed, temperature=float(rng.choice([0.0, 1.0])))
    asked = request(rng.integers(0, 256, 20).tolist(), sampling)
    plain = naive(small, asked.runs[0])
    guesser = _Slipping(rng, [*plain.token_ids, EOS])
    engine = loop(small)
    make = engine._sample

    def sample(*given):
        made = make(*given)
        made._guesser = guesser
        return made

    engine._sample = sample  # type: ignore[method-assign]
    (run,) = finish(engine, asked)
    assert same(run, plain)
    records = [*run.tokens, *([] if run.end is None else [run.end])]
    wanted = {}
    for place, guess in guesser.proposals:
        came = records[place : place + len(guess)]
        wrong = [at for at, (one, other) in enumerate(zip(guess, came, strict=False)) if one != other.id]
        if wrong:  # the first of them was judged, and took the others with it
            at = wrong[0]
            wanted[place + at] = (guess[at], tokenizer().piece(guess[at]), "lookup", len(guess) - at - 1)
    assert {at: token.refused for at, token in enumerate(records) if token.refused} == wanted
    assert len(wanted) > 3 or len(records) < 20
    assert all(token.source == "sampled" for token in records if token.refused)
    dropped = sum(1 + token.refused.dropped for token in records if token.refused)
    assert run.drafts.proposed - run.drafts.accepted - dropped <= 8  # those that the end left unjudged


@pytest.mark.parametrize("seed", range(6))
def test_a_draft_model_changes_no_token(seed):
    """The model itself as its own drafter is mostly right; one with other weights is mostly wrong."""
    small = model(None)
    memory = 60 * small.page_bytes
    rng = np.random.default_rng(seed)
    for drafter in (small, model(None, seed=1)):
        draft = DraftModel(drafter, memory)
        engine = loop(small, pages=60, draft=draft)
        asked = [
            request(
                rng.integers(0, 256, 30).tolist(), Sampling(max_tokens=40, seed=seed, temperature=t, top_k=20)
            )
            for t in (0.0, 0.5, 1.0)
        ]
        runs = finish(engine, *asked)
        assert all(same(run, naive(small, run)) for run in runs)
        draft.tree.check_integrity()
        assert draft.tree.held == 0
        if drafter is small:
            proposed = sum(run.drafts.proposed for run in runs)
            assert proposed == sum(run.drafts.accepted for run in runs)
        refused = [(token.id, token.refused) for run in runs for token in run.tokens if token.refused]
        assert bool(refused) == (drafter is not small)
        assert all(guess.by == "model" and guess.id != chosen for chosen, guess in refused)
        assert tokenizer() is not None


def test_the_real_model_drafts_for_itself():
    prompt = "One, two, three, four, five,"
    sampling = Sampling(temperature=0, max_tokens=20)
    with (
        LLM(draft=False, kv_memory="100MB") as plain,
        LLM(draft="smollm2-135m-instruct", kv_memory="200MB") as llm,
    ):
        assert llm.generate(prompt, sampling).tokens == plain.generate(prompt, sampling).tokens


def test_a_draft_model_with_other_tokens_is_refused():
    with pytest.raises(GlassloopError, match="draft is gemma-3-270m, whose tokens are not those of"):
        LLM(draft="gemma-3-270m")


def test_a_lookup_is_silent_without_a_past():
    guesser = Lookup(Pace(), Memory())
    assert guesser.guess([1, 2], 8, None) == []  # type: ignore[arg-type]
    guesser.learn([1, 2, 3])
