"""The chain equals the naive one over the whole vocabulary, token for token, whatever a request asks for."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from decode.naive import ORDER, Naive, recorded
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glassloop import ModelError, Sampling, SamplingError
from glassloop.decode import luck
from glassloop.decode.candidates import Candidates
from glassloop.decode.chain import DEFAULT_ORDER
from glassloop.decode.decoder import Decoder
from glassloop.decode.stage import REGISTER, stage
from glassloop.errors import described
from glassloop.ops import choose_ops
from glassloop.ops.native import library


def random_logits(random, size):
    shape = random.integers(0, 6)
    if shape == 0:
        logits = random.normal(0, random.choice([0.1, 1, 3, 10]), size)
    elif shape == 1:  # ties everywhere
        logits = random.integers(-2, 3, size).astype(float)
    elif shape == 2:  # many removed beforehand
        logits = np.where(random.random(size) < 0.5, -np.inf, random.normal(0, 2, size))
        logits[random.integers(size)] = 0.0
    elif shape == 3:  # all the same
        logits = np.full(size, random.normal(0, 5))
    elif shape == 4:  # huge
        logits = random.normal(0, 1, size) * 1e4
    else:  # like a model: a few likely, a long tail
        logits = random.gumbel(0, 2, size)
    return logits.astype(np.float32)


def random_sampling(random, size):
    def maybe(chance, value):
        return value if random.random() < chance else None

    ids = [int(i) for i in random.integers(0, size, 4)]
    options = {
        "temperature": float(random.choice([0, 0.1, 0.7, 1, 1.5, 5, 100])),
        "top_k": maybe(0.3, int(random.choice([1, 2, 5, 50, 300]))),
        "top_p": maybe(0.3, float(random.choice([1e-6, 0.25, 0.5, 0.9, 0.999]))),
        "min_p": maybe(0.2, float(random.choice([0.01, 0.1, 0.5, 1]))),
        "typical_p": maybe(0.1, float(random.choice([0.1, 0.5, 0.95]))),
        "top_n_sigma": maybe(0.1, float(random.choice([0.3, 1, 2]))),
        "epsilon_cutoff": maybe(0.1, float(random.choice([1e-4, 0.01, 0.2]))),
        "eta_cutoff": maybe(0.1, float(random.choice([1e-4, 0.01, 0.2]))),
        "xtc_probability": maybe(0.1, 0.5),
        "xtc_threshold": float(random.choice([0.01, 0.1, 0.3])),
        "mirostat_tau": maybe(0.1, float(random.choice([0.2, 1, 3, 8]))),
        "mirostat_eta": float(random.choice([0, 0.1, 1])),
        "repetition_penalty": maybe(0.3, float(random.choice([0.5, 1.1, 2]))),
        "presence_penalty": maybe(0.2, float(random.choice([-1, 0.5]))),
        "frequency_penalty": maybe(0.2, float(random.choice([-0.3, 0.5]))),
        "no_repeat_ngram_size": maybe(0.1, int(random.integers(1, 4))),
        "dry_multiplier": maybe(0.2, 0.8),
        "dry_allowed_length": int(random.integers(1, 4)),
        "logit_bias": maybe(0.2, {ids[0]: 5.0, ids[1]: -3.0}),
        "allowed_token_ids": maybe(0.05, ids),
        "bad_words": maybe(0.1, [[ids[0]], [ids[1], ids[2]]]),
        "min_tokens": maybe(0.1, 3),
        "stop_token_ids": maybe(0.1, [ids[3]]),
        "stages": maybe(0.2, [str(name) for name in random.permutation(ORDER)]),
    }
    return Sampling.from_dict({name: value for name, value in options.items() if value is not None})


def compare(random, size, ops=choose_ops("reference").rows):
    logits, sampling = random_logits(random, size), random_sampling(random, size)
    # A history of few tokens again and again, or one that covers much of the vocabulary.
    kinds, length = (min(size, 6), 12) if random.random() < 0.7 else (size, 150)
    prompt = [int(i) for i in random.integers(0, kinds, random.integers(1, length))]
    output = [int(i) for i in random.integers(0, kinds, random.integers(0, length))]
    seed, salt = int(random.integers(2**63)), int(random.integers(4))
    decoder = Decoder(sampling, size, seed, prompt, salt, eos_ids=(0,), ops=ops)
    logprobs = [-np.inf if random.random() < 0.1 else -float(random.gamma(1, 2)) for _ in output]
    for token, logprob in zip(output, logprobs, strict=True):
        decoder.commit(token, recorded(token, logprob))
    known = (logits, prompt + output, len(prompt), sampling, seed, len(prompt + output), salt, (0,))
    naive = Naive(*known, logprobs)
    told = f"{sampling}\n{logits=} {prompt=} {output=} {seed=} {salt=}"
    with np.errstate(invalid="ignore"):
        try:
            naive.run()
        except (ValueError, IndexError):
            naive.base[:] = -np.inf
    if not len(naive.ranked):
        with pytest.raises(SamplingError, match="no token is left"):
            decoder.choose(logits)
        return False
    token, runner_up, margin, logprob = naive.winner()
    chosen = decoder.choose(logits)
    assert (chosen.id, chosen.runner_up) == (token, runner_up), told
    assert chosen.margin == pytest.approx(margin, rel=1e-12, abs=1e-9), told
    near = 1e-9
    assert chosen.logprob == pytest.approx(logprob, rel=near, abs=near), told
    assert chosen.rank_after == 1 + naive.ranked.index(token), told
    raw = logits.astype(np.float64)
    raw -= raw.max()
    raw -= np.log(np.exp(raw).sum())
    assert chosen.raw_logprob == pytest.approx(raw[token], rel=near, abs=near), told
    by_model = sorted(range(size), key=lambda i: (-logits[i], i))
    assert chosen.rank == 1 + by_model.index(token), told
    entropy = -sum(np.exp(x) * x for x in raw if x > -700)
    assert chosen.entropy == pytest.approx(entropy, rel=10 * near, abs=10 * near), told
    told_of = chosen.alternatives
    assert told_of["id"].tolist() == by_model[: sampling.logprobs], told
    after = naive.logits[told_of["id"]] - chosen.log_sum_exp_after
    assert told_of["logprob"] == pytest.approx(after, rel=near, abs=near), told
    assert told_of["raw_logprob"] == pytest.approx(raw[told_of["id"]], rel=near, abs=near), told
    assert chosen.survivors in (None, len(naive.ranked)), told
    return True


NATIVE = pytest.param("native", marks=pytest.mark.skipif(not library.available(), reason="not built"))


@pytest.mark.parametrize("ops", ["reference", NATIVE])
@pytest.mark.parametrize("worker", range(2))
def test_it_equals_the_naive_chain(worker, ops):
    """2,500 random requests four times over, ties and removed tokens included."""
    random = np.random.default_rng([worker, len(ops)])
    sizes = [1, 2, 3, 8, 20, 70, 70, 130]
    chosen = sum(compare(random, int(random.choice(sizes)), choose_ops(ops).rows) for _ in range(2500))
    assert chosen > 2000


@pytest.mark.parametrize("ops", ["reference", NATIVE])
def test_it_equals_the_naive_chain_on_a_large_vocabulary(ops):
    random = np.random.default_rng([99, len(ops)])
    assert sum(compare(random, 50_000, choose_ops(ops).rows) for _ in range(6)) > 3


def test_the_default_order_is_the_documented_one():
    document = Path(__file__).parents[2] / "docs" / "decoding.md"
    table = document.read_text().split("default order\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \| (\w+)", table, re.M) == [
        (name, REGISTER[name].kind) for name in DEFAULT_ORDER
    ]
    assert list(DEFAULT_ORDER) == ORDER
    assert all(REGISTER[name].built_in for name in DEFAULT_ORDER)


def test_every_token_can_win_by_luck_alone():
    """No cut: a token far outside the sorted head wins as often as it should, and the hash finds it."""
    size, draws = 5_000, 300
    logits = np.zeros(size, np.float32)
    logits[:200] = 4.0
    decoder = Decoder(Sampling(), size, seed=1)
    outside = 0
    for _ in range(draws):
        chosen = decoder.choose(logits)
        naive = Naive(logits, [], 0, Sampling(), 1, decoder.step.position)
        assert chosen.id == naive.run([]).winner()[0]
        outside += chosen.id >= 200
        decoder.commit(0)
    expected = draws * 4800 / (4800 + 200 * np.exp(4))
    assert abs(outside - expected) < 4 * np.sqrt(expected)


# ── the edges ──────────────────────────────────────────────────────────────────────────────────────────────

LOGITS = np.array([1.0, 3.0, 3.0, 2.0, -1.0], np.float32)


def survivors(sampling, logits=LOGITS, tokens=(), generated=()):
    seen = []
    decoder = Decoder(sampling, len(logits), 5, tokens)
    for token in generated:
        decoder.commit(token)
    decoder.run_stages(logits, lambda stage, before, after: seen.append(after))
    return sorted(seen[-1].everyone()[0].tolist()) if seen else list(range(len(logits)))


@pytest.mark.parametrize("ops", ["reference", NATIVE])
@pytest.mark.parametrize(("logprob", "left"), [(0.0, 5), (-70.0, 2)])
def test_mirostat_has_a_bound_however_long_the_text_is(ops, logprob, left):
    """Certain tokens raise it for ever, and surprising ones lower it below zero: the likeliest stay."""
    decoder = Decoder(Sampling(mirostat_tau=50.0, mirostat_eta=1.0), 5, 5, ops=choose_ops(ops).rows)
    for _ in range(300):
        decoder.commit(1, recorded(1, logprob))
    assert decoder.run_stages(LOGITS)[1].count == left and decoder.choose(LOGITS).survivors in (None, left)


def test_temperature_zero_is_the_argmax_with_ties_to_the_lower_id():
    chosen = Decoder(Sampling(temperature=0), 5, 5).choose(LOGITS)
    assert chosen.id == 1 and chosen.luck == 0 and chosen.margin == 0 and chosen.runner_up == 2


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 1.0},
        {"top_k": 0},
        {"repetition_penalty": 1.0},
        {"presence_penalty": 0.0, "frequency_penalty": 0.0},
        {"min_p": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0},
        {"dry_multiplier": 0.0, "no_repeat_ngram_size": 0, "xtc_probability": 0.0, "mirostat_tau": 0.0},
    ],
)
def test_what_does_nothing_is_no_stage(options):
    assert Decoder(Sampling(**options), 5, 5).chain == ()


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 1e-9},
        {"top_k": 1},
        {"min_p": 1.0, "top_k": 1},
        {"typical_p": 1e-9, "top_k": 1},
        {"epsilon_cutoff": 0.99, "top_k": 4, "logit_bias": {1: 0.1}},
        {"top_n_sigma": 1e-9, "top_p": 0.01},
        {"mirostat_tau": 1e-9, "logit_bias": {1: 0.1}},
    ],
)
def test_one_survivor_is_always_left(options):
    assert survivors(Sampling(**options)) == [1]


def test_ties_are_cut_by_lower_id():
    assert survivors(Sampling(top_k=1)) == [1]
    assert survivors(Sampling(top_p=0.35)) == [1]
    assert survivors(Sampling(top_k=3), np.zeros(300, np.float32)) == [0, 1, 2]


def test_an_emptied_vocabulary_names_the_stages_at_odds():
    with pytest.raises(SamplingError, match=r"allowed_tokens and bad_words are at odds .*leaves 1.*leaves 0"):
        survivors(Sampling(allowed_token_ids=[3], bad_words=[[3]]))
    with pytest.raises(SamplingError, match="allowed_tokens and min_tokens are at odds"):
        Decoder(Sampling(allowed_token_ids=[3], min_tokens=1), 5, 5, eos_ids=[3]).choose(LOGITS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error(value):
    logits = LOGITS.copy()
    logits[2] = value
    for options in ({}, {"temperature": 0}, {"top_k": 2, "repetition_penalty": 2}):
        with pytest.raises(ModelError, match="position 9"):
            Decoder(Sampling(**options), 5, 5, prompt=[1] * 9).choose(logits)


def test_nothing_but_minus_infinity_is_an_error():
    with pytest.raises(ModelError, match="every token"):
        Decoder(Sampling(), 5, 5).choose(np.full(5, -np.inf, np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {5: 1}},
        {"allowed_token_ids": [1, 70]},
        {"stop_token_ids": [5]},
        {"bad_words": [[1, 9]]},
    ],
)
def test_an_id_outside_the_vocabulary_is_an_error(options):
    (name,) = options
    with pytest.raises(SamplingError, match=rf"{name} has token id \d+; .* 0 to 4"):
        Decoder(Sampling(**options), 5, 5)


# ── order, and stages of one's own ─────────────────────────────────────────────────────────────────────────


def test_a_request_can_reorder_the_stages():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    options = {"temperature": 3.0, "top_p": 0.75}
    assert survivors(Sampling(**options), logits) == [0, 1, 2]
    assert survivors(Sampling(**options, stages=["top_p", "temperature"]), logits) == [0, 1]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (["temperature"], "leaves top_p out"),
        (["top_p", "top_p"], "'top_p' 2 times"),
        (["top_p", "tempreature"], "did you mean temperature"),
        (
            ["top_p", "zzz"],
            r"the stages are logit_bias, allowed_tokens, .*Register a stage of your own with @stage before",
        ),
    ],
)
def test_a_bad_order_is_an_error(stages, said):
    with pytest.raises(SamplingError, match=said):
        Decoder(Sampling(top_p=0.9, stages=stages), 5, 5)


@pytest.mark.parametrize(
    ("run", "kind", "said"),
    [
        (
            lambda candidates, step: None,
            SamplingError,
            "stage 'wrong' returned None; Candidates are expected",
        ),
        (lambda candidates, step: candidates.ids, SamplingError, "stage 'wrong' returned array"),
        (lambda candidates, step: 1 // 0, ZeroDivisionError, "division"),
        (
            lambda candidates, step: candidates.only([True, False]),
            ValueError,
            r"only\(\) got bool of shape \(2,\); a bool for each id of the vocabulary, \(5,\), is expected",
        ),
        (
            lambda candidates, step: candidates.only([1, 2, 3, 4, 0]),
            ValueError,
            r"only\(\) got int64 of shape",
        ),
        (lambda candidates, step: candidates.only([]), ValueError, r"only\(\) got float64 of shape \(0,\)"),
        (
            lambda candidates, step: candidates.without([5]),
            ValueError,
            r"without\(\) got the id 5; .* 0 to 4",
        ),
        (lambda candidates, step: candidates.without([-1]), ValueError, r"without\(\) got the id -1"),
        (lambda candidates, step: candidates.without([[1], [2]]), ValueError, r"without\(\) got int64 of"),
        (lambda candidates, step: candidates.without(["a"]), ValueError, r"without\(\) got <U1 of shape"),
        (
            lambda candidates, step: candidates.moved([1, 2], lambda logits: logits[:1]),
            ValueError,
            r"the function of moved\(\) returned shape \(1,\); one logit per id, \(2,\), is expected",
        ),
        (
            lambda candidates, step: candidates.first(3).moved([1, 2], lambda logits: 0.0),
            ValueError,
            r"the function of moved\(\) returned shape \(\)",
        ),
        (lambda candidates, step: candidates.moved([1, 1], lambda x: x), ValueError, "an id more than once"),
        (lambda candidates, step: candidates.with_mass(90), ValueError, r"with_mass\(\) got 90; a probab"),
    ],
)
def test_a_mistake_in_a_stage_is_reported_with_its_name(run, kind, said):
    try:
        stage("wrong", kind="mask")(run)
        with pytest.raises(kind, match=said) as raised:
            survivors(Sampling(stages=["wrong"]))
        if kind is not SamplingError:
            assert raised.value.__notes__ == ["raised by stage 'wrong' at position 0"]
            assert described(raised.value).endswith("(raised by stage 'wrong' at position 0)")
    finally:
        REGISTER.pop("wrong", None)


def test_a_stage_that_meets_no_tokens_is_not_blamed():
    try:

        @stage("looks", kind="mask")
        def looks(candidates, step):
            return candidates.without(candidates.ids[:1])

        with pytest.raises(SamplingError, match="allowed_tokens and bad_words are at odds") as raised:
            survivors(Sampling(allowed_token_ids=[1], bad_words=[[1]], stages=[*DEFAULT_ORDER, "looks"]))
        assert "looks" not in str(raised.value) and not hasattr(raised.value, "__notes__")
    finally:
        REGISTER.pop("looks", None)


def test_users_add_stages_by_name():
    try:

        @stage("no_favourite", kind="mask")
        def no_favourite(candidates: Candidates, step) -> Candidates:
            return candidates.without(candidates.ids[:1])

        assert survivors(Sampling(stages=[*DEFAULT_ORDER, "no_favourite"])) == [0, 2, 3, 4]
        assert survivors(Sampling(top_k=2)) == [1, 2]  # not asked for, not run
    finally:
        REGISTER.pop("no_favourite", None)
    with pytest.raises(SamplingError, match="built in"):
        stage("top_k", kind="mask")(lambda candidates, step: candidates)
    with pytest.raises(SamplingError, match="kind"):
        stage("mine", kind="magic")


def test_a_token_that_rises_to_the_last_of_the_head_comes_before_it_if_its_id_is_lower():
    logits = np.zeros(100, np.float32)
    logits[36:] = 1.0  # the 64 that are sorted, all level
    assert Decoder(Sampling(temperature=0, logit_bias={3: 1.0}), 100, 5).choose(logits).id == 3


def test_equal_scores_go_to_the_lower_id(monkeypatch):
    logits = np.array([0.0, 1.0, 2.0], np.float32)
    monkeypatch.setattr(luck, "luck_of", lambda key, ids: 2.0 - logits[ids])
    chosen = Decoder(Sampling(), 3, 5).choose(logits)
    assert (chosen.id, chosen.runner_up, chosen.margin) == (0, 1, 0)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("penalty", [0.5, 3.0])
@pytest.mark.parametrize("ties", [False, True])
def test_a_penalty_on_the_whole_head_brings_up_the_rest(penalty, temperature, ties):
    """Everyone that was sorted moves: the head must not be taken for all there is, or for the highest."""
    random = np.random.default_rng(8)
    for seed in range(20):
        logits = random.normal(2, 1, 300).astype(np.float32)
        if ties:
            logits = np.round(logits * 2) / 2
        tokens = [int(i) for i in np.argsort(-logits)[: random.integers(40, 120)]]
        sampling = Sampling(temperature=temperature, repetition_penalty=penalty, presence_penalty=-0.5)
        naive = Naive(logits, tokens, 5, sampling, seed, len(tokens)).run()
        chosen = Decoder(sampling, 300, seed, tokens[:5])
        for token in tokens[5:]:
            chosen.commit(token)
        left = chosen.run_stages(logits)[1]
        assert left.ids.tolist() == naive.ranked[: len(left.ids)] and len(left.ids) >= 16
        assert chosen.choose(logits).id == naive.winner()[0]


def test_a_stage_never_changes_what_it_was_given():
    logits = LOGITS.copy()
    sampling = Sampling(logit_bias={1: -9}, repetition_penalty=2, bad_words=[[2]], top_k=3, top_p=0.9)
    before_and_after = []
    decoder = Decoder(sampling, 5, 5, prompt=[1, 2, 3])
    decoder.run_stages(logits, lambda s, before, after: before_and_after.append((before.everyone(), before)))
    assert (logits == LOGITS).all()
    for (ids, values), before in before_and_after:
        again_ids, again = before.everyone()
        assert (ids == again_ids).all() and (values == again).all()


@pytest.mark.parametrize("name", ["reference", "native"])
@given(data=st.data())
def test_choosing_gives_the_row_back_as_it_was(name, data):
    """The stages write into the row of logits while they run, also where they fail."""
    logits = data.draw(arrays(np.float32, 40, elements=st.floats(-30, 30, width=32)))
    tokens = st.lists(st.integers(0, 39), max_size=12)
    sampling = Sampling(
        temperature=data.draw(st.sampled_from([0.0, 0.7])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.5])),
        logit_bias=data.draw(st.dictionaries(st.integers(0, 39), st.floats(-100, 100), max_size=3)),
        allowed_token_ids=data.draw(st.none() | st.lists(st.integers(0, 39), min_size=1, max_size=2)),
        bad_words=[[token] for token in data.draw(tokens)],
        top_p=data.draw(st.sampled_from([1.0, 0.8])),
    )
    decoder = Decoder(sampling, 40, 5, data.draw(tokens), ops=choose_ops(name).rows)
    before, frozen = logits.copy(), logits.copy()
    frozen.flags.writeable = False
    try:
        chosen = decoder.choose(logits)
        assert chosen.raw_logprob == pytest.approx(float(before[chosen.id]) - chosen.log_sum_exp)
        assert decoder.choose(frozen).id == chosen.id
        decoder.record_forced(logits, 3)
    except SamplingError:
        pass  # nobody was left
    assert logits.tobytes() == before.tobytes()
