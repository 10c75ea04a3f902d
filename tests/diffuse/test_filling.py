"""Filling: one place at a time samples the joint distribution in any order; a pass follows its rule; luck is
keyed by (seed, position, pass); stages, ends and grammars hold."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from edit.toy import chi_square
from engine.small import tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import GlassloopError, Sampling
from glassloop.decode.decoder import Decoder
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.luck import pass_salt
from glassloop.diffuse.filling import Filling
from glassloop.diffuse.select import Belief, select, to_take_back

WIDTH, LETTERS, MASK = 3, 3, 3


def _joint(seed: int = 0) -> np.ndarray:
    """A joint distribution over three places with three tokens each, with strong dependences."""
    weights = np.exp(2 * np.random.default_rng(seed).standard_normal((LETTERS,) * WIDTH))
    return weights / weights.sum()


def _conditionals(joint: np.ndarray, tokens: list[int | None]) -> np.ndarray:
    """The logits of each masked place, given the tokens of the others: what a perfect model computes."""
    seen = joint[tuple(slice(None) if token is None else slice(token, token + 1) for token in tokens)]
    rows = []
    for place, token in enumerate(tokens):
        if token is None:
            other = tuple(axis for axis in range(WIDTH) if axis != place)
            row = seen.sum(axis=other)
            rows.append([*np.log(row / row.sum()), 1.0])  # the mask itself is likely, and never drawn
    return np.array(rows, np.float32)


def _sample(joint: np.ndarray, seed: int, options: Diffusion, **sampling: float) -> tuple[int, ...]:
    decoder = Decoder(Sampling(**{"temperature": 1.0, **sampling}), LETTERS + 1, seed, [0], never=(MASK,))
    filling = Filling(WIDTH, options, decoder, MASK)
    while not filling.is_full:
        filling.advance(_conditionals(joint, filling.tokens))
    return tuple(filling.tokens)


@pytest.mark.parametrize("order", ["confidence", "entropy", "left", "random"])
def test_one_place_at_a_time_samples_the_joint_distribution(order):
    joint, count = _joint(), 1000
    found = [_sample(joint, seed, Diffusion(threshold=None, most=1, order=order)) for seed in range(count)]
    cells = list(product(range(LETTERS), repeat=WIDTH))
    assert abs(chi_square([found.count(cell) for cell in cells], count * joint.reshape(-1))) < 4


def test_the_comparison_notices_places_that_are_filled_at_once():
    joint, count = _joint(), 1000
    found = [_sample(joint, seed, Diffusion(threshold=0.0, passes=1)) for seed in range(count)]
    cells = list(product(range(LETTERS), repeat=WIDTH))
    assert chi_square([found.count(cell) for cell in cells], count * joint.reshape(-1)) > 8


def test_greedy_takes_the_likeliest_and_a_mask_is_never_filled_with_a_mask():
    joint = _joint(3)
    made = _sample(joint, 0, Diffusion(threshold=None, most=1), temperature=0.0)
    tokens: list[int | None] = [None] * WIDTH
    for _ in range(WIDTH):
        rows = _conditionals(joint, tokens)[:, :LETTERS]
        masks = [place for place, token in enumerate(tokens) if token is None]
        best = int(rows.max(axis=1).argmax())
        tokens[masks[best]] = int(rows[best].argmax())
    assert made == tuple(tokens)


beliefs = st.lists(st.builds(Belief, st.floats(0, 1), st.floats(0, 8)), min_size=1, max_size=20)
rules = st.builds(
    Diffusion,
    threshold=st.none() | st.floats(0, 1),
    entropy=st.none() | st.floats(0, 10),
    most=st.none() | st.integers(1, 20),
    order=st.sampled_from(["confidence", "entropy", "left", "random"]),
)


@settings(max_examples=200, deadline=None)
@given(beliefs, rules, st.integers(1, 30))
def test_a_pass_fills_enough_and_no_more_than_its_rule(beliefs, options, left):
    taken = select(beliefs, options, left, 7, 1)
    least = -(-len(beliefs) // left)
    assert len(set(taken)) == len(taken) >= max(1, least)
    assert set(taken) <= set(range(len(beliefs)))
    if options.most is not None:
        assert len(taken) <= max(options.most, least, 1)
    if options.order in ("confidence", "entropy") and len(taken) > max(1, least):
        entropies = [beliefs[place].entropy for place in taken]
        if options.entropy is not None:
            assert sum(entropies) - max(entropies) <= options.entropy + 1e-9
        elif options.threshold is not None:
            assert all(beliefs[place].confidence >= options.threshold for place in taken)
    assert taken == select(beliefs, options, left, 7, 1)


def test_a_budget_of_passes_is_kept():
    joint = _joint()
    decoder = Decoder(Sampling(temperature=1.0), LETTERS + 1, 0, [0], never=(MASK,))
    filling = Filling(WIDTH, Diffusion(threshold=1.0, passes=2), decoder, MASK)
    passes = 0
    while not filling.is_full:
        filling.advance(_conditionals(joint, filling.tokens))
        passes += 1
    assert passes == 2 and [len(each.filled) for each in filling.records] == [2, 1]


def test_luck_is_keyed_by_seed_position_and_pass():
    """The same place in another pass, another place in the same pass, another seed: other luck."""
    row = np.zeros((2, 50), np.float32)

    def lucks(seed: int, passes: int) -> list[float]:
        decoder = Decoder(Sampling(temperature=1.0), 50, seed, [0], never=(49,))
        filling = Filling(2, Diffusion(threshold=0.0), decoder, 49, passes=passes)
        filling.advance(row.copy())
        return [chosen.luck for chosen in filling.chosen]

    assert lucks(1, 0) == lucks(1, 0)
    assert len({*lucks(1, 0), *lucks(1, 1), *lucks(2, 0)}) == 6
    assert pass_salt(0, 0) != pass_salt(0, 1) != pass_salt(1, 0)


def test_a_place_has_the_stages_of_the_request_with_its_own_past():
    """A penalty counts the tokens to the left of a place, and those of a known place only."""
    row = np.zeros(60, np.float32)
    row[[5, 6]] = 9.0, 8.5
    decoder = Decoder(Sampling(temperature=0, presence_penalty=1.0), 60, 0, [0], never=(59,))
    filling = Filling(3, Diffusion(threshold=None, most=1, order="left"), decoder, 59)
    for _ in range(3):
        filling.advance(np.stack([row] * len(filling.masks)))
    assert filling.tokens == [5, 6, 5]  # 9 - 1 < 8.5; then both are penalized


def test_nothing_is_filled_after_the_end_of_the_text():
    row = np.zeros((4, 40), np.float32)
    row[2, 7] = 30.0
    sampling = Sampling(temperature=0, stop_token_ids=[7])
    filling = Filling(4, Diffusion(threshold=0.9), Decoder(sampling, 40, 0, [0], never=(39,)), 39)
    filling.advance(row)
    assert filling.tokens == [None, None, 7, None] and len(filling.places) == 3 and filling.masks == [0, 1]
    filling.advance(np.zeros((2, 40), np.float32))
    assert not filling.is_full
    filling.advance(np.zeros((1, 40), np.float32))
    assert filling.is_full and filling.tokens[3] is None


def _texts(sampling: Sampling, seed: int, options: Diffusion) -> str:
    rng = np.random.default_rng(seed)
    decoder = Decoder(sampling, 257, seed, list(b"x"), tokenizer=tokenizer(), never=(0,))
    filling = Filling(8, options, decoder, 0)
    while not filling.is_full:
        filling.advance(rng.standard_normal((len(filling.masks), 257)).astype(np.float32) * 3)
    return bytes(token for token in filling.places if token is not None).decode("latin-1")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_a_grammar_holds_although_several_places_are_filled_in_a_pass(seed, threshold):
    text = _texts(Sampling(regex="(ab|ba){4}", temperature=1.0), seed, Diffusion(threshold=threshold))
    assert len(text) == 8 and {text[at : at + 2] for at in range(0, 8, 2)} <= {"ab", "ba"}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_bad_words_hold_over_the_borders_of_passes(seed):
    sampling = Sampling(bad_words=["aa", "bb"], allowed_token_ids=[97, 98], temperature=1.0)
    text = _texts(sampling, seed, Diffusion(threshold=0.3))
    assert "aa" not in text and "bb" not in text


def test_a_revision_with_a_grammar_is_refused():
    decoder = Decoder(Sampling(regex="a+"), 257, 0, list(b"x"), tokenizer=tokenizer())
    with pytest.raises(GlassloopError, match=r"diffusion\.revise is given with a constraint"):
        Filling(4, Diffusion(revise=1), decoder, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-20, 0), min_size=1, max_size=16), st.floats(0, 1))
def test_the_worst_tokens_are_taken_back(scores, retake):
    taken = to_take_back(scores, Diffusion(retake=retake), by_chance=False)
    assert len(taken) == max(1, round(retake * len(scores)))
    assert max(scores[place] for place in taken) <= min(
        [score for place, score in enumerate(scores) if place not in taken], default=0.0
    )


def test_what_is_taken_back_is_recorded_and_filled_anew():
    joint = _joint()
    decoder = Decoder(Sampling(temperature=1.0), LETTERS + 1, 1, [0], never=(MASK,))
    filling = Filling(WIDTH, Diffusion(threshold=0.0, retake=0.5), decoder, MASK, at=10)
    filling.advance(_conditionals(joint, filling.tokens))
    before = list(filling.tokens)
    filling.take_back([-1.0, -9.0, -5.0])
    assert filling.tokens[0] == before[0] and filling.masks == [1, 2]
    record = filling.advance(_conditionals(joint, filling.tokens))
    assert [(each.at, each.id) for each in record.unfilled] == [(11, before[1]), (12, before[2])]
    assert record.unfilled[0].why == "log-probability -9.00 from the left"
    assert {each.at for each in record.filled} == {11, 12} and filling.is_full


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("block", 0), ("block", 10**9), ("block", 1.5), ("block", True), ("passes", 0), ("most", -1)),
        *(("threshold", 1.5), ("threshold", float("nan")), ("entropy", -1.0), ("order", "right")),
        *(("revise", -1), ("retake", 2.0), ("revise_by", "nothing"), ("unknown", 1)),
    ],
)
def test_wrong_options_are_refused_by_name(name, value):
    with pytest.raises(GlassloopError, match=rf"diffusion\.{name} is "):
        Diffusion.of({name: value})
