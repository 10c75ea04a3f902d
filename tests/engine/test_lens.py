"""The lenses: they show what the forward pass itself computes, on both op sets, and move nothing else."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from crossings.world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from model.tiny import TINY, VOCAB, make
from ops.random_models import random_config, random_tensor

from glassloop import LLM, GlassloopError, Sampling, TextError
from glassloop.engine.lens import names_for
from glassloop.model.cache import Branches
from glassloop.model.lens import Lens
from glassloop.model.loader import ModelFiles
from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps

TIRED = "The cat sat on the mat because it was tired"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kv_memory="300MB")


@pytest.fixture(scope="module")
def reference() -> LLM:
    return LLM(ops="reference", kv_memory="300MB")


def _look(model: Transformer, ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layers, attention and the logits of the last token."""
    branches = Branches(model, len(ids))
    batch, lens = branches.batch([(0, 0, ids)]), Lens(model)
    layers, attention = lens.layers(batch, branches.pages), lens.attention(batch, branches.pages)
    return layers, attention, np.array(model.forward(batch, branches.pages))[0]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_the_last_layer_says_the_models_logits_bit_for_bit(seed):
    """Any shape of model, any format: norms before and after, windows, caps, no final norm, tied or not."""
    rng = np.random.default_rng(seed)
    format = FORMATS[str(rng.choice(list(FORMATS)))]
    config = random_config(rng, format.block_values)
    weights = {name: random_tensor(rng, name, shape, format) for name, shape in config.shapes().items()}
    ids = rng.integers(0, config.vocab_size, rng.integers(1, 80)).tolist()
    for ops in (NativeOps(), ReferenceOps()):
        layers, attention, logits = _look(Transformer(config, weights, ops), ids)
        count = len(config.layers)
        assert layers.shape == (count + 1, config.vocab_size)
        assert attention.shape == (count, config.heads, len(ids))
        assert layers[-1].tobytes() == logits.tobytes()
        if config.attention.sinks:  # which take a part of each head's attention
            assert (attention.sum(axis=-1) <= 1 + 1e-5).all()
        else:
            np.testing.assert_allclose(attention.sum(axis=-1), 1, atol=1e-5)
        window = config.layers[0].mixer.window
        if window is not None:
            assert not attention[0, :, : max(0, len(ids) - window)].any()


@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_native_equals_the_reference_up_to_rounding(tiny, tmp_path):
    make(tiny, tmp_path)
    files = ModelFiles(tmp_path)
    ids = np.random.default_rng(0).integers(3, VOCAB, 45).tolist()
    native, reference = files.transformer(NativeOps()), files.transformer(ReferenceOps())
    for ours, expected in zip(_look(native, ids), _look(reference, ids), strict=True):
        assert np.abs(ours - expected).max() / np.abs(expected).max() < 1e-2
    ours, expected = (Lens(model).embeddings(range(VOCAB)) for model in (native, reference))
    assert np.array_equal(ours, expected)


def test_attention_equals_transformers(tmp_path):
    """The oracle has the weights of every layer if it is asked to compute attention the plain way."""
    import torch
    from transformers import AutoModelForCausalLM

    tiny = next(tiny for tiny in TINY if tiny.name == "llama")
    make(tiny, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = np.random.default_rng(1).integers(3, VOCAB, 20).tolist()
    with torch.no_grad():
        told = theirs(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
        said = [theirs.lm_head(theirs.model.norm(state[0, -1])) for state in told.hidden_states[:-1]]
    layers, attention, _ = _look(ModelFiles(tmp_path).transformer(ReferenceOps()), ids)
    for ours, weights in zip(attention, told.attentions, strict=True):
        np.testing.assert_allclose(ours, weights[0, :, -1].numpy(), atol=1e-5)
    for ours, logits in zip(layers, said, strict=False):  # their last state has been through the norm already
        np.testing.assert_allclose(ours, logits.numpy(), atol=1e-4)


def test_what_is_in_the_cache_changes_nothing(llm):
    """A lens that finds the text computed, all or half of it, shows the same as one that finds nothing."""
    text = TIRED * 20  # several pages
    fresh = LLM(kv_memory="300MB")
    first = fresh.lens.attention(text, -3), fresh.lens.layers(text, -3)
    again = fresh.lens.attention(text, -3), fresh.lens.layers(text, -3)
    llm.generate(text[:300], Sampling(max_tokens=4))
    other = llm.lens.attention(text, -3), llm.lens.layers(text, -3)
    for attention, layers in (again, other):
        assert attention.weights.tobytes() == first[0].weights.tobytes() and layers == first[1]


def test_looking_does_not_change_a_run(llm):
    sampling = Sampling(seed=5, max_tokens=12)
    before = LLM(kv_memory="300MB").generate(TIRED, sampling)
    llm.lens.attention(TIRED), llm.lens.layers(TIRED), llm.lens.neighbours(" cat")
    assert llm.generate(TIRED, sampling).tokens == before.tokens
    llm.engine.call(llm.engine.loop.tree.check_integrity)


def test_the_lens_agrees_with_the_record(llm):
    """The last layer's probabilities of what a run chose are those that were recorded with it."""
    run = llm.generate("The capital of France is", Sampling(seed=3, max_tokens=6, logprobs=5))
    for at, token in enumerate(run.tokens):
        seen = llm.lens.layers(run, len(run.prompt_ids) - 1 + at)
        last = seen.layers[-1]
        assert seen.given and seen.follows.id == token.id and last.rank == token.rank
        assert last.logprob == token.raw_logprob and last.entropy == token.entropy
        alternatives = [(other.id, other.raw_logprob) for other in token.alternatives]
        assert [(one.id, one.logprob) for one in last.top] == alternatives
    assert not llm.lens.layers(run).given


def test_what_it_looks_at(llm, reference):
    """In the default model the head that finds what "it" stands for is the 9th of layer 14: the cat."""
    for each in (llm, reference):
        seen = each.lens.attention(TIRED, "it")
        assert [piece.text for piece in seen.tokens][-1] == " it" and seen.token == 7
        np.testing.assert_allclose(seen.weights.sum(axis=-1), 1, atol=1e-5)
        assert seen.strongest(1)[:2] == (14, 9) and seen.strongest(1)[2] > 0.7
        assert seen.layer(14)[8].argmax() == 1
        assert seen.mean[0] > 0.3  # heads that look for nothing look at the first token
        assert seen.elsewhere[0] == 0 and abs(float(seen.elsewhere.sum()) - 1) < 1e-5
    near = np.abs(llm.lens.attention(TIRED, "it").weights - reference.lens.attention(TIRED, "it").weights)
    assert near.mean() < 0.01 and near.max() < 0.1


def test_layers_on_both_op_sets(llm, reference):
    ours, expected = (each.lens.layers("The capital of France is") for each in (llm, reference))
    assert ours.follows.text == expected.follows.text == " Paris" and len(ours.layers) == 31
    for one, other in zip(ours.layers, expected.layers, strict=True):
        assert one.top[0].logprob <= 0 and abs(one.entropy - other.entropy) < 0.3
        assert math.fsum(math.exp(candidate.logprob) for candidate in one.top) <= 1 + 1e-12
    assert ours.layers[0].top[0].text == " is"  # before any layer, a token says itself
    assert ours.layers[-1].rank == 1 and ours.layers[10].rank > 1000


def test_neighbours_on_both_op_sets(llm, reference):
    ours, expected = (each.lens.neighbours(" king", 20) for each in (llm, reference))
    assert [one.id for one in ours.found] == [one.id for one in expected.found]
    words = [one.text for one in ours.found]
    assert {" queen", " emperor", " prince"} <= set(words) and " king" not in words
    cosines = [one.cosine for one in ours.found]
    assert cosines == sorted(cosines, reverse=True) and all(-1 <= cosine <= 1 for cosine in cosines)
    # Without a space it is the end of a word: quite another token.
    assert "ked" in [one.text for one in llm.lens.neighbours("king").found]
    by_id = llm.lens.neighbours(ours.of[0].id, 20)
    assert by_id == ours and len(llm.lens.neighbours("kingdom of heaven").of) > 1
    assert llm.lens.neighbours_in(TIRED, " cat") == llm.lens.neighbours(" cat")


def test_everything_is_plain_data(llm):
    for seen in (llm.lens.attention(TIRED), llm.lens.layers(TIRED), llm.lens.neighbours(" cat")):
        plain = seen.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain["model"] == llm.name and plain["ops"] == llm.op_set
    one = llm.lens.attention(TIRED).to_dict(layer=2)["layers"]
    assert [each["layer"] for each in one] == [2] and len(one[0]["weights"]) == 9


def test_a_run_ids_and_text_are_the_same(llm):
    run = llm.generate("The sea is", Sampling(seed=1, max_tokens=4))
    ids = [*run.prompt_ids, *run.token_ids]
    assert llm.lens.layers(run, 5) == llm.lens.layers(ids, 5)
    first = llm.lens.attention(run, 2).weights
    assert first.tobytes() == llm.lens.attention("The sea is").weights.tobytes()


def test_experts_of_a_token_whatever_is_in_the_cache():
    """A small model, in which one layer of three has five experts."""
    llm = World({"window": None, "ops": "native", "draft": "off", "experts": True})
    try:
        seen = llm.lens.experts("to be or not", 5)
        (route,) = seen.layers
        assert (route.layer, route.among, len(route.experts)) == (3, 5, 2)
        assert sum(one.weight for one in route.experts) == pytest.approx(1)
        assert route.in_words.startswith(f"{max(route.experts, key=lambda one: one.weight).number} (0.")
        assert json.loads(json.dumps(seen.to_dict()))["lens"] == "experts" in names_for(llm.config)
        run = llm.generate("to be or not", temperature=0, max_tokens=5)
        assert llm.lens.experts(run, 5) == seen == llm.lens.experts("to be or not", 5)
        assert "took, with their weights" in seen._repr_html_()
    finally:
        llm.close()


def test_errors_say_what_was_expected(llm):
    for wrong, said in (
        (lambda: llm.lens.attention(TIRED, 99), "token is 99; a place from 0 to 9 is expected"),
        (lambda: llm.lens.attention(TIRED, "dog"), "token is 'dog'; one of the text's tokens is expected"),
        (lambda: llm.lens.attention(""), "text is empty"),
        (lambda: llm.lens.attention([1, 10**6]), "text\\[1\\] is 1000000"),
        (lambda: llm.lens.attention(TIRED).layer(31), "layer is 31; one from 1 to 30 is expected"),
        (lambda: llm.lens.layers(TIRED, count=0), "count is 0; a whole number from 1 to 1000 is expected"),
        (lambda: llm.lens.neighbours(""), "of is empty"),
        (lambda: llm.lens.neighbours(10**6), "of is 1000000; a token id below 49152 is expected"),
        (lambda: llm.lens.layers([5] * 9000), "room for"),
        (lambda: llm.lens.experts(TIRED), "has no experts; a mixture of experts is expected"),
    ):
        with pytest.raises((GlassloopError, TextError), match=said):
            wrong()
