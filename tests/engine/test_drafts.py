"""Guesses: they change when tokens come, never which; and they stop where they do not pay."""

from __future__ import annotations

import numpy as np
import pytest
from engine.small import EOS, finish, loop, model, naive, request, same, tokenizer

from glassloop import LLM, GlassloopError, Sampling
from glassloop.engine.branch import Branch
from glassloop.engine.drafting import draft_model
from glassloop.engine.drafting.draft_model import DraftModel
from glassloop.engine.drafting.guesser import AcceptanceRates
from glassloop.engine.drafting.lookup import Lookup
from glassloop.engine.drafting.ngram_index import NgramIndex, RecentRuns, RunsByOwner, ngram_of
from glassloop.engine.step_cost import StepCost
from glassloop.ops.native.ops import NativeOps


def test_grams_find_the_longest_agreement():
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(0, 3, rng.integers(4, 60)).tolist()
        grams = NgramIndex()
        grams.extend(tokens[:10])
        grams.extend(tokens[10:])
        agreed, following = grams.longest(tokens, ngram_of(tokens))
        places = [place for place in range(3, len(tokens)) if tokens[place - 3 : place] == tokens[-3:]]
        assert (agreed > 0) == bool(places)
        if agreed:
            found = [p for p in places if tokens[p : p + 24] == following]
            assert any(tokens[p - agreed : p] == tokens[-agreed:] for p in found if p >= agreed)


def test_an_earlier_run_ends_at_its_border():
    recent = RecentRuns()
    recent.add([1, 2, 3, 4])
    recent.add([5, 6, 7])
    for tokens, found in (([0, 1, 2, 3], (3, [4])), ([2, 3, 4], (0, []))):
        assert recent.longest(tokens, ngram_of(tokens)) == found


@pytest.mark.parametrize("seed", range(30))
def test_a_run_that_is_forgotten_is_in_no_guess(seed):
    """The others are found as if it had never been there."""
    rng = np.random.default_rng(seed)
    recent, without = RecentRuns(), RecentRuns()
    texts = {f"run {number}": rng.integers(0, 5, rng.integers(0, 40)).tolist() for number in range(12)}
    gone = "run 4"
    texts[gone] = [100 + token for token in texts[gone]]  # tokens that no other run has
    for run, text in texts.items():
        recent.add(text, run)
        if run != gone:
            without.add(text, run)
        if rng.random() < 0.5:
            recent.longest([1, 2, 3], ngram_of([1, 2, 3]))  # indexes what was added so far
    recent.add(texts[gone][:7], gone)  # it was interrupted once, and then continued
    if rng.random() < 0.5:
        recent.longest([1, 2, 3], ngram_of([1, 2, 3]))
    recent.forget(gone)
    for text in texts.values():
        for end in range(3, len(text) + 1):
            asked = text[:end]
            assert recent.longest(asked, ngram_of(asked)) == without.longest(asked, ngram_of(asked))
    index = recent._newer
    assert max(index._tokens, default=0) < 100
    held = {part for gram in index._latest for part in (gram >> 42, gram >> 21 & 0x1FFFFF, gram & 0x1FFFFF)}
    assert not held & {*range(100, 105)}


def test_a_guess_comes_from_runs_of_the_same_owner():
    runs = RunsByOwner()
    runs.add("one", [1, 2, 3, 4], "a")
    runs.add("two", [1, 2, 3, 5], "b")
    asked = [0, 1, 2, 3]
    assert runs.of("one").longest(asked, ngram_of(asked)) == (3, [4])
    assert runs.of("two").longest(asked, ngram_of(asked)) == (3, [5])
    assert runs.of("three").longest(asked, ngram_of(asked)) == (0, [])
    runs.forget("b")
    assert runs.of("two").longest(asked, ngram_of(asked)) == (0, [])


def test_the_runs_of_owners_that_came_first_go():
    runs = RunsByOwner()
    for number in range(1000):
        runs.add(f"client {number}", [1, 2, 3, number], "a")
    assert len(runs._owners) <= 64 and "client 999" in runs._owners
    for number in range(40):
        for _ in range(30):
            runs.add(f"busy {number}", [7] * 1024, "a")
    assert sum(map(len, runs._owners.values())) <= 1 << 18 and "busy 39" in runs._owners


def test_a_guess_from_another_run_is_not_recorded():
    """One from the run's own text is; one from another run is a part of that run's text."""
    small = model(None)
    secret = [200, 201, 202, 203, 204, 205, 206, 207]
    engine = loop(small)
    engine.drafts.step_cost.cost = lambda rows: 1.0  # guesses seem to pay always
    finish(engine, request([65, 66, 67, 67, 67, *secret], Sampling(max_tokens=1), owner="one"))

    def asked(owner):
        """A client that says the beginning again and waits for a guess at what follows."""
        probe = Sampling(allowed_token_ids=[67], max_tokens=3, seed=1)
        (run,) = finish(engine, request([66, 67, 67], probe, owner=owner))
        assert same(run, naive(small, run))
        assert all(token.refused is None for token in run.tokens)
        return run.drafts.proposed

    assert asked("two") == asked("") == 0
    assert asked("one") > 0  # the owner's own runs are guessed from
    probe = Sampling(allowed_token_ids=[70], max_tokens=3)
    (run,) = finish(engine, request([67, 70, 70, 70, 71, 70, 70], probe, owner="two"))
    assert [token.refused and token.refused.id for token in run.tokens] == [None, 71, None]


def test_a_guess_is_as_long_as_it_pays():
    cost = StepCost()
    assert cost.worth(0.02, 24) == 0 and cost.worth(0.97, 24) >= 8 and cost.worth(0.97, 2) == 2
    cost.saw(1, 1.0)
    cost.saw(9, 8.5)  # rows that cost as much as steps: no guess is worth it
    assert cost.worth(0.8, 8) == 0
    rates = AcceptanceRates()
    for _ in range(30):
        rates.saw(3, right=False)
    assert rates.of(3) < 0.05 < rates.of(4)


def test_repetition_is_noticed_and_drafted():
    small = model(None)
    prompt = [65, 66, 67, 68, 69, 70] * 6
    sampling = Sampling(
        temperature=0, max_tokens=60, ignore_eos=True, logit_bias=dict.fromkeys(range(65, 71), 30.0)
    )
    asked = request(prompt, sampling)
    engine = loop(small)
    engine.drafts.step_cost.saw = lambda rows, seconds: (
        None
    )  # what rows cost by the estimate, not as measured
    (run,) = finish(engine, asked)
    assert same(run, naive(small, run))
    assert run.drafts.accepted > 20 and engine.counters.steps < 45
    assert [token.source for token in run.tokens].count("draft") == run.drafts.accepted
    (again,) = finish(engine, request(prompt, sampling))  # now an earlier run knows it all
    assert again.tokens == run.tokens and again.drafts.accepted >= run.drafts.accepted


class _Slipping:
    """Knows what will come, but for a slip now and then, and remembers what it has proposed."""

    name = "lookup"
    is_own = True

    def __init__(self, rng, prompt_length, expected):
        self._rng, self._prompt_length, self._expected = rng, prompt_length, expected
        self.proposals = []  # (the place of its first token, the guess)

    def guess(self, tokens, room):
        place = len(tokens) - self._prompt_length
        right = self._expected[place : place + min(room, int(self._rng.integers(0, 9)))]
        guess = [token if self._rng.random() < 0.8 else (token + 1) % 256 for token in right]
        self.proposals.append((place, guess))
        return guess

    def learn(self, branch, place):
        pass


@pytest.mark.parametrize("seed", range(12))
def test_every_guess_that_was_refused_is_kept_where_it_was_and_no_other(seed):
    small, rng = model(None), np.random.default_rng(seed)
    sampling = Sampling(max_tokens=50, seed=seed, temperature=float(rng.choice([0.0, 1.0])))
    asked = request(rng.integers(0, 256, 20).tolist(), sampling)
    plain = naive(small, asked.runs[0])
    guesser = _Slipping(rng, len(asked.prompt_ids), [*plain.token_ids, EOS])
    engine = loop(small)
    engine.drafts.guesser = lambda *run: guesser  # type: ignore[method-assign]
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
        proposed = sum(run.drafts.proposed for run in runs)
        assert proposed > 0
        if drafter is small:
            assert proposed == sum(run.drafts.accepted for run in runs)
        refused = [(token.id, token.refused) for run in runs for token in run.tokens if token.refused]
        assert bool(refused) == (drafter is not small)
        assert all(guess.by == "model" and guess.id != chosen for chosen, guess in refused)


class _Passes:
    """Counts the rows of every forward pass of a model, and refuses passes while a step is planned."""

    def __init__(self, transformer, monkeypatch):
        self.rows: list[int] = []
        self.spans: list[int] = []
        self.planning = False
        self._forward = transformer.forward
        monkeypatch.setattr(transformer, "forward", self.forward)

    def forward(self, batch, pages):
        assert not self.planning
        self.rows.append(len(batch.tokens))
        self.spans.append(len(batch.spans))
        return self._forward(batch, pages)

    def watch(self, engine, monkeypatch):
        plan = engine.scheduler.plan

        def planned():
            self.planning = True
            try:
                return plan()
            finally:
                self.planning = False

        monkeypatch.setattr(engine.scheduler, "plan", planned)


def test_a_long_prompt_beside_streams_costs_bounded_passes_of_both_models(monkeypatch):
    monkeypatch.setattr(NativeOps, "rows_beside", 16)
    monkeypatch.setattr(draft_model, "PASS_ROWS", 16)
    small, drafter, streams = model(None), model(None, seed=2), 3
    # It drafts what the model itself says, with passes that are counted apart.
    monkeypatch.setattr(drafter, "_program", small._program)
    passes, drafted = _Passes(small, monkeypatch), _Passes(drafter, monkeypatch)
    memory = 60 * small.page_bytes
    engine = loop(small, pages=60, draft=DraftModel(drafter, memory))
    monkeypatch.setattr(engine.drafts.step_cost, "worth", lambda chance, most, each: min(2, most))
    passes.watch(engine, monkeypatch), drafted.watch(engine, monkeypatch)
    sampling = Sampling(max_tokens=90, seed=1, ignore_eos=True)
    asked = [request([65 + number] * 5, sampling) for number in range(streams)]
    for each in asked:
        engine.add(each)
    while not all(each.runs[0].tokens for each in asked):
        engine.step()
    rng = np.random.default_rng(0)
    asked.append(
        request(rng.integers(0, 256, 150).tolist(), Sampling(max_tokens=20, seed=1, ignore_eos=True))
    )
    engine.add(asked[-1])
    passes.rows.clear(), drafted.rows.clear()
    while not asked[-1].ended:
        steps, before = len(passes.rows), [len(each.runs[0].tokens) for each in asked]
        drafts = len(drafted.rows)
        engine.step()
        assert len(passes.rows) == steps + 1 and len(drafted.rows) - drafts <= 2
        for each, count in zip(asked[:streams], before, strict=False):
            assert each.ended or len(each.runs[0].tokens) > count  # tokens in every step
    assert max(passes.rows) <= (streams + 1) * 3 + 16 and max(drafted.rows) <= 16
    assert max(drafted.spans) == streams + 1  # all of them in one batch
    assert sum(drafted.rows) >= 150 + 20  # the drafter has read the long prompt too
    while engine.busy:
        engine.step()
    for each in asked:
        (run,) = each.runs
        assert same(run, naive(small, run))
        assert 0 < run.drafts.accepted == run.drafts.proposed


def test_the_real_model_drafts_for_itself():
    prompt = "One, two, three, four, five,"
    sampling = Sampling(temperature=0, max_tokens=20)
    with (
        LLM(draft=False, kv_memory="100MB") as plain,
        LLM(draft="smollm2-135m-instruct", kv_memory="200MB") as llm,
    ):
        assert llm.generate(prompt, sampling).tokens == plain.generate(prompt, sampling).tokens
        assert llm.drafter == "model" and plain.drafter is None


def test_a_draft_model_with_other_tokens_is_refused():
    with pytest.raises(GlassloopError, match="draft is gemma-3-270m, whose vocabulary differs from that of"):
        LLM(draft="gemma-3-270m")


def test_masks_are_no_drafter_any_more():
    with pytest.raises(GlassloopError, match="masks"):
        LLM(draft="masks", kv_memory="50MB")


def test_a_lookup_is_silent_without_a_past():
    guesser = Lookup(StepCost(), RecentRuns())
    assert guesser.guess([1, 2], 8) == []
    guesser.learn(Branch([1, 2, 3], 3), 0)


@pytest.mark.parametrize(("second_row", "pays"), [(0.2, True), (0.8, False)])
def test_the_lookup_guesses_only_where_a_clear_gain_is_expected(second_row, pays):
    """Costs are those that were measured: a row more for a fifth of a step pays, for four fifths it does not,
    although it would be slightly faster."""
    costs = StepCost()
    for rows in (1, 2, 3, 4, 5, 7, 9, 13, 17, 25):
        costs.saw(rows, 1.0 + second_row * (rows - 1))
    assert costs.best(0.9, 1)[1] == 1
    rate, guess = Lookup(costs, RecentRuns()).propose(list(range(20)) * 2, 8)
    assert (rate > 0) is bool(guess) is pays
