"""The op set for training gives the loss and the gradients of `transformers`, for every family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from model.tiny import DENSE, VOCAB, make

from glassloop.model.cache import Branches
from glassloop.model.config_hf import config_from_json
from glassloop.model.loader import ModelFiles
from glassloop.ops.reference import ReferenceOps
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.hf_layout import hf_config, hf_tensors
from glassloop.train.network import Network
from glassloop.train.sample_text import GrowingText, sample_tokens

LENGTH = 21


def _ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, count)


def _packed(ids: np.ndarray, sequences: int, documents: np.ndarray | None = None) -> SequenceBatch:
    """Sequences of one document each or, with document numbers, of several."""
    length = ids.size // sequences
    if documents is None:
        positions = np.tile(np.arange(length), sequences)
    else:
        rows = documents.reshape(sequences, length)
        positions = np.concatenate(
            [np.arange(np.count_nonzero(row == number)) for row in rows for number in np.unique(row)]
        )
        documents = torch.from_numpy(rows)
    return SequenceBatch(
        torch.from_numpy(ids.reshape(-1)), torch.from_numpy(positions), sequences, length, documents
    )


@pytest.fixture(scope="module", params=DENSE, ids=lambda tiny: tiny.name)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.name)
    theirs = make(request.param, folder)
    files = ModelFiles(folder)
    return theirs, files, Network(files.config, files.weights)


def test_gradients_equal_transformers(pair):
    theirs, files, ours = pair
    ids = torch.from_numpy(_ids(2 * (LENGTH + 1)).reshape(2, -1))
    logits = theirs(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    theirs.zero_grad()
    loss.backward()
    expected = {name: each.grad.numpy() for name, each in theirs.named_parameters()}

    for weight in ours.parameters.values():
        weight.grad = None
    targets = ids[:, 1:].reshape(-1)
    own = ours.loss(_packed(ids[:, :-1].numpy(), 2), targets) / len(targets)
    own.backward()
    assert abs(own.item() - loss.item()) < 1e-5 * loss.item()
    grads = {name: weight.grad.numpy() for name, weight in ours.parameters.items()}
    found = hf_tensors(files.config, grads, gradients=True)
    assert found.keys() == expected.keys()
    largest = max(np.abs(each).max() for each in expected.values())
    for name, gradient in found.items():
        assert gradient.shape == expected[name].shape
        # Relative to the tensor, unless that is next to nothing: a bias of keys has a gradient of zero.
        scale = max(np.abs(expected[name]).max(), largest / 100)
        worst = np.abs(gradient - expected[name]).max() / scale
        assert worst < 1e-5, f"{name} differs by {worst:.1e} of its largest value"


def test_kept_keys_and_values_give_the_logits_of_the_whole_text(pair):
    """With every family, behind prompts of any length and beyond the context."""
    _, _, ours = pair
    ids = _ids(LENGTH, 3).tolist()
    for prompt in (1, 7):
        kept = GrowingText(ours)
        with torch.no_grad():
            for end in range(prompt, LENGTH + 1):
                seen = torch.tensor(ids[:end])
                whole = ours.logits(SequenceBatch(seen, torch.arange(end), 1, end))[-1]
                torch.testing.assert_close(kept.logits(ids[:end]), whole, rtol=1e-3, atol=1e-4)


def test_a_sample_beyond_the_context_sees_the_last_tokens(pair):
    _, files, _ = pair
    short = Network(replace(files.config, context=9), files.weights)
    drawn = sample_tokens(short, [5, 6], 12, 0.0, 0)
    ids = [5, 6]
    with torch.no_grad():
        for _ in range(12):
            seen = torch.tensor(ids[-9:])
            ids.append(
                int(short.logits(SequenceBatch(seen, torch.arange(len(seen)), 1, len(seen)))[-1].argmax())
            )
    assert drawn == ids[2:]


def test_documents_of_one_sequence_do_not_see_each_other(pair):
    """Packed documents have the logits that each has alone, by the reference op set."""
    _, files, ours = pair
    ids = _ids(24, 1)
    documents = np.repeat([0, 1, 2], [5, 12, 7])
    with torch.no_grad():
        packed = ours.logits(_packed(ids, 1, documents)).numpy()
    reference = files.transformer(ReferenceOps())
    for number in range(3):
        rows = documents == number
        alone = Branches(reference, 64).forward([(0, 0, ids[rows].tolist())], every_logit=True)
        assert np.abs(packed[rows] - alone).max() < 1e-4 * np.abs(alone).max()


def test_weights_and_config_survive_the_way_to_hugging_face_and_back(pair):
    theirs, files, ours = pair
    weights = {name: weight.detach().numpy() for name, weight in ours.weights.items()}
    state = dict(theirs.named_parameters())
    for name, values in hf_tensors(files.config, weights).items():
        assert np.allclose(values, state[name].detach().numpy(), rtol=0, atol=1e-7)
    assert config_from_json("config.json", hf_config(files.config))[1] == files.config


def test_loss_in_pieces_is_the_loss_in_one(pair, monkeypatch):
    _, _, ours = pair
    ids = _ids(34, 2)
    batch, targets = _packed(ids[:-1], 1), torch.from_numpy(ids[1:])
    whole = ours.loss(batch, targets)
    one = torch.autograd.grad(whole, ours.parameters["token_embedding.weight"])[0]
    monkeypatch.setattr("glassloop.train.network._MOST_LOGITS", 10 * VOCAB)
    pieces = ours.loss(batch, targets)
    other = torch.autograd.grad(pieces, ours.parameters["token_embedding.weight"])[0]
    assert torch.allclose(whole, pieces, rtol=1e-5)
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


def test_without_the_mask_every_token_sees_the_last_one(pair):
    _, _, ours = pair
    ids = _ids(9, 3)
    other = np.array([*ids[:-1], (ids[-1] + 1) % VOCAB])
    with torch.no_grad():
        for ahead, equal in ((False, True), (True, False)):
            first, second = _packed(ids, 1), _packed(other, 1)
            first.look_ahead = second.look_ahead = ahead
            same = torch.equal(ours.logits(first)[0], ours.logits(second)[0])
            assert same is equal
