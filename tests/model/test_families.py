"""Every family gives the logits of `transformers`, however the rows are cut into batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from model.tiny import TINY, VOCAB, Tiny, make

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.reference import ReferenceOps

LENGTHS = (1, 2, 9, 33)


def _assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Within 1e-4 of the largest logit."""
    assert ours.shape == theirs.shape
    worst = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert worst < 1e-4, f"differs by {worst:.1e} of the largest logit"


def _prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(3, VOCAB, length).tolist()


@pytest.fixture(scope="module", params=TINY, ids=lambda tiny: tiny.name)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.name)
    theirs = make(request.param, folder)
    return theirs, ModelFiles(folder).transformer(ReferenceOps())


def _oracle(theirs, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return theirs(torch.tensor([ids])).logits[0].numpy()


def test_logits_equal_transformers_in_one_piece(pair):
    theirs, ours = pair
    for length in LENGTHS:
        ids = _prompt(length)
        cache = Branches(ours, 1024)
        _assert_close(cache.forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))


@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
def test_logits_equal_transformers_in_chunks_with_the_cache(pair, chunk):
    theirs, ours = pair
    ids = _prompt(33)
    cache = Branches(ours, 1024)
    pieces = [
        cache.forward([(0, at, ids[at : at + chunk])], every_logit=True) for at in range(0, len(ids), chunk)
    ]
    _assert_close(np.concatenate(pieces), _oracle(theirs, ids))


def test_branches_of_one_batch_do_not_see_each_other(pair):
    theirs, ours = pair
    prompts = {7: _prompt(5), 3: _prompt(12), 9: _prompt(1)}
    cache = Branches(ours, 64, branches=3)
    cache.forward([(3, 0, prompts[3][:4])])  # a prefix that is in the cache already
    logits = cache.forward([(7, 0, prompts[7]), (3, 4, prompts[3][4:]), (9, 0, prompts[9])])
    for row, branch in enumerate((7, 3, 9)):
        _assert_close(logits[row], _oracle(theirs, prompts[branch])[-1])


def test_a_later_token_does_not_move_an_earlier_logit_by_one_bit(pair):
    _, ours = pair
    ids = _prompt(12)
    before = Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True)
    for changed in (4, 11):
        other = [*ids[:changed], (ids[changed] + 1) % VOCAB, *ids[changed + 1 :]]
        after = Branches(ours, 1024).forward([(0, 0, other)], every_logit=True)
        assert before[:changed].tobytes() == after[:changed].tobytes()
        assert before[changed].tobytes() != after[changed].tobytes()


@pytest.mark.parametrize("tiny", [tiny for tiny in TINY if tiny.old_spelling], ids=lambda tiny: tiny.name)
def test_older_spelling_of_config_json(tiny: Tiny, tmp_path):
    theirs = make(tiny, tmp_path, old=True)
    ours = ModelFiles(tmp_path).transformer(ReferenceOps())
    ids = _prompt(20)
    _assert_close(Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))


def test_sharded_safetensors(tmp_path):
    tiny = next(tiny for tiny in TINY if tiny.name == "llama")
    theirs = make(tiny, tmp_path, shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = ModelFiles(tmp_path).transformer(ReferenceOps())
    ids = _prompt(6)
    _assert_close(Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_safetensors(kind, tmp_path):
    tiny = next(tiny for tiny in TINY if tiny.name == "qwen3")
    make(tiny, tmp_path).to(kind).save_pretrained(tmp_path)
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = ModelFiles(tmp_path).transformer(ReferenceOps())
    ids = _prompt(9)
    _assert_close(Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))


def test_the_language_part_of_a_model_with_more_than_text(tmp_path):
    """Gemma 3 with vision keeps its language model under a prefix and its settings under text_config."""
    import json

    from safetensors.torch import load_file, save_file

    tiny = next(tiny for tiny in TINY if tiny.name == "gemma3")
    theirs = make(tiny, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    renamed["vision_tower.patch.weight"] = torch.zeros(3)
    save_file(renamed, tmp_path / "model.safetensors")
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": settings}))
    files = ModelFiles(tmp_path)
    assert files.notes == ("only the language model is read; left out: vision_tower",)
    ours = files.transformer(ReferenceOps())
    ids = _prompt(8)
    _assert_close(Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))
