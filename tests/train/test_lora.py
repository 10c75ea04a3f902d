"""LoRA learns as PEFT does, PEFT reads what it writes, and a merged model is the same model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from model.tiny import TINY, make
from train.small import text_file, tiny_run

from glassloop import LLM, Sampling
from glassloop.errors import GlassloopError, ModelError
from glassloop.model.adapter import read_adapter
from glassloop.model.loader import ModelFiles
from glassloop.train.batches import Batches, Cursor, split_validation
from glassloop.train.config import TrainError
from glassloop.train.convert import export
from glassloop.train.curves import read_points
from glassloop.train.lora import target_names
from glassloop.train.optimizer import learning_rate
from glassloop.train.token_files import TokenFiles
from glassloop.train.train import train


@pytest.fixture(scope="module")
def peft():
    """Imported where it is needed: that takes several seconds, and every worker imports this file."""
    import peft

    return peft


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model to adapt: trained for a few steps, so that it has something to lose."""
    folder = tmp_path_factory.mktemp("base")
    config = tiny_run(text_file(folder), steps=20, validate_every=0, checkpoint_every=20)
    return train(config, folder / "run", quiet=True).folder


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    (folder / "text.txt").write_text("The bird finds the river. One fish likes the house. " * 30)
    config = tiny_run(
        str(folder / "text.txt"), model=str(base), lora_rank=4, lora_alpha=8.0, steps=15, packing="stream"
    )
    return config, train(config, folder / "run", quiet=True).folder


def test_loss_curve_is_that_of_peft(peft, base, adapted):
    """The same batches through PEFT and torch's AdamW, from the same first adapter."""
    config, folder = adapted
    ours = [point["loss"] for point in read_points(folder.parent / "curves.jsonl") if "loss" in point]
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    settings = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    theirs = peft.get_peft_model(model, settings)
    random = np.random.default_rng(config.seed)
    names = target_names(ModelFiles(base).config, config.lora_targets)
    parameters = dict(theirs.named_parameters())
    from glassloop.model.weight_names import hf_name

    with torch.no_grad():
        for name in names:
            stem = hf_name(ModelFiles(base).config, f"{name}.weight")[0].removesuffix(".weight")
            down = parameters[f"base_model.model.{stem}.lora_A.default.weight"]
            bound = down.shape[1] ** -0.5
            down.copy_(torch.from_numpy(random.uniform(-bound, bound, down.shape).astype(np.float32)))
    trained = [p for p in parameters.values() if p.requires_grad]
    assert len(trained) == 2 * len(names)
    optimizer = torch.optim.AdamW(
        trained, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
    )
    files = TokenFiles(folder.parent / "tokens")
    training, _ = split_validation(files, config.validation_share)
    batches, cursor = Batches(files, training, config.length, seed=config.seed), Cursor(0, 0)
    for step, expected in enumerate(ours):
        rows, cursor = batches.take(cursor, config.batch)
        tokens, targets = torch.from_numpy(rows.tokens), torch.from_numpy(rows.targets)
        mask = None
        if rows.documents is not None:  # the padding of a sequence that ends early is a document of its own
            numbers = torch.from_numpy(rows.documents)
            seen = torch.ones(config.length, config.length, dtype=torch.bool).tril()
            allowed = (numbers[:, :, None] == numbers[:, None]) & seen
            mask = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)[:, None]
        logits = theirs(
            input_ids=tokens, position_ids=torch.from_numpy(rows.positions), attention_mask=mask
        ).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        assert abs(loss.item() - expected) < 1e-4, f"step {step}"
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, config.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
    assert ours[-1] < ours[0] - 0.05  # it did learn


def test_peft_reads_the_adapter_and_merging_gives_the_same_model(peft, base, adapted, tmp_path):
    _, folder = adapted
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
    merged = export(str(base), tmp_path / "merged", adapter=str(folder))
    ours = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    before = ModelFiles(base).weights["layers.0.q.weight"].float32()
    changed = ModelFiles(merged).weights["layers.0.q.weight"].float32()
    assert np.abs(changed - before).max() > 1e-3
    for (name, own), (other, expected) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert name == other and torch.allclose(own, expected, rtol=0, atol=1e-6)
    run = LLM(merged, ops="reference").generate("The ", temperature=0, max_tokens=10, ignore_eos=True)
    ids = torch.tensor([ModelFiles(base).tokenizer().encode("The ")])
    out = theirs.generate(ids, max_new_tokens=10, min_new_tokens=10, do_sample=False)
    assert [token.id for token in run.tokens] == out[0, ids.shape[1] :].tolist()


def test_an_adapter_of_peft_is_read(peft, base, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    settings = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], use_rslora=True, init_lora_weights=False
    )
    theirs = peft.get_peft_model(model, settings)
    theirs.save_pretrained(tmp_path)
    added = read_adapter(tmp_path, ModelFiles(base).config)
    assert {name.split(".")[2] for name in added.matrices} == {"q", "down"}
    layer = theirs.base_model.model.model.layers[1].self_attn.q_proj
    expected = layer.get_delta_weight("default").detach().numpy()
    assert np.allclose(added.delta("layers.1.q"), expected, atol=1e-6)


@pytest.mark.parametrize(
    "change", [{"peft_type": "IA3"}, {"use_dora": True}, {"r": 0}, {"rank_pattern": {"q": 2}}]
)
def test_adapters_of_other_kinds_are_refused(base, adapted, tmp_path, change):
    _, folder = adapted
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    values = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(values | change))
    with pytest.raises(ModelError, match=next(iter(change))):
        read_adapter(tmp_path, ModelFiles(base).config)


def test_an_adapter_of_another_model_is_refused(adapted, tmp_path):
    _, folder = adapted
    make(next(tiny for tiny in TINY if tiny.name == "llama"), tmp_path)
    with pytest.raises(ModelError, match="does not fit"):
        read_adapter(folder, ModelFiles(tmp_path).config)


def test_fused_matrices_are_refused_in_words(tmp_path):
    make(next(tiny for tiny in TINY if tiny.name == "gpt2"), tmp_path)
    config = ModelFiles(tmp_path).config
    with pytest.raises(TrainError, match="'q', which gpt2 models keep in one matrix"):
        target_names(config, ("q",))
    assert len(target_names(config, ("o", "up"))) == 2 * len(config.layers)
    with pytest.raises(GlassloopError, match="names no matrix"):
        target_names(config, ("gate",))


def test_the_engine_gives_the_tokens_of_peft(peft, base, adapted, tmp_path):
    """Beside the model, an adapter gives the greedy tokens of PEFT and of the merged model."""
    _, folder = adapted
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(model, folder)
    ids = torch.tensor([ModelFiles(base).tokenizer().encode("The ")])
    expected = theirs.generate(input_ids=ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    greedy = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
    merged = LLM(export(str(base), tmp_path / "merged", adapter=str(folder)), ops="reference")
    ours = LLM(base, ops="reference", adapters={"bird": folder})
    run = ours.generate("The ", greedy.changed({"adapter": "bird"}))
    assert run.token_ids == expected[0, ids.shape[1] :].tolist() == merged.generate("The ", greedy).token_ids
    assert run.token_ids != ours.generate("The ", greedy).token_ids
    with torch.no_grad():
        logits = theirs(input_ids=expected[:, :-1]).logits[0].numpy()
    found = ours.logits(expected[0, :-1].tolist(), 0, adapter="bird")
    assert np.abs(found - logits).max() < 1e-4 * np.abs(logits).max()
