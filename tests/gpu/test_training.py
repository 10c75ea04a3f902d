"""Training on a GPU: gradients as on the CPU, and a killed run that ends with the same bits. No tokenizer is
needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from train.small import tiny_run

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU and torch", allow_module_level=True)

from glassloop.train.batches import document_cuts  # noqa: E402
from glassloop.train.checkpoint import read_checkpoint  # noqa: E402
from glassloop.train.config import TrainConfig, TrainError  # noqa: E402
from glassloop.train.gradient_ops import SequenceBatch  # noqa: E402
from glassloop.train.network import Network  # noqa: E402
from glassloop.train.new_model import first_weights, new_config  # noqa: E402
from glassloop.train.token_files import TokenWriter  # noqa: E402
from glassloop.train.train import resume, train  # noqa: E402


class _Killed(Exception):
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Documents of random length in which each token is the one before it plus a constant of its own."""
    random = np.random.default_rng(0)
    writer = TokenWriter(tmp_path_factory.mktemp("data") / "tokens", 64)
    for _ in range(200):
        size, step = random.integers(5, 80), random.integers(1, 7)
        writer.add((random.integers(64) + step * np.arange(size)) % 64)
    return str(writer.finish().folder)


def _config(data: str, **settings: object) -> TrainConfig:
    values = {"device": "cuda", "dim": 64, "length": 64, "batch": 8, "steps": 20}
    return tiny_run(data, **values | settings)


def test_gradients_are_those_of_the_cpu(data):
    config = new_config(_config(data), 64)
    weights = first_weights(config, 0)
    random = np.random.default_rng(1)
    ids = random.integers(0, 64, (2, 33))
    documents = np.repeat([[0, 1], [0, 1]], [12, 20], axis=1)
    positions = np.tile(np.concatenate([np.arange(12), np.arange(20)]), 2)
    found = {}
    for device in ("cpu", "cuda"):
        network = Network(config, weights, device=device)
        tokens, targets, places, numbers = (
            torch.from_numpy(np.ascontiguousarray(each)).to(device)
            for each in (ids[:, :-1].reshape(-1), ids[:, 1:].reshape(-1), positions, documents)
        )
        loss = network.loss(SequenceBatch(tokens, places, 2, 32, numbers), targets)
        loss.backward()
        found[device] = {name: weight.grad.cpu() for name, weight in network.parameters.items()}
    for name, gradient in found["cpu"].items():
        assert torch.allclose(found["cuda"][name], gradient, rtol=0, atol=1e-4 * float(gradient.abs().max()))


def test_documents_are_kept_apart_by_the_flash_kernel_as_by_the_mask(data):
    config = new_config(_config(data, heads=4, kv_heads=2), 64)
    weights = first_weights(config, 0)
    ids = np.random.default_rng(1).integers(0, 64, (3, 33))
    documents = np.repeat([[0, 1, 2]] * 3, [5, 7, 20], axis=1)
    found = []
    for cuts in (None, torch.from_numpy(document_cuts(documents)).cuda()):
        network = Network(config, weights, device="cuda", bf16=True)
        assert network.takes_cuts
        tokens, targets, numbers = (
            torch.from_numpy(np.ascontiguousarray(each)).cuda()
            for each in (ids[:, :-1].reshape(-1), ids[:, 1:].reshape(-1), documents)
        )
        positions = torch.cat([torch.arange(size) for size in (5, 7, 20)]).repeat(3).cuda()
        loss = network.loss(SequenceBatch(tokens, positions, 3, 32, numbers, cuts=cuts), targets)
        loss.backward()
        found.append((loss.item(), network.parameters["layers.0.k.weight"].grad))
    (plain, one), (flash, other) = found
    assert abs(plain - flash) < 1e-3 * plain
    assert float((one - other).abs().max()) < 0.03 * float(one.abs().max())


def test_a_large_vocabulary_has_the_gradients_of_a_small_one_in_bf16(data, monkeypatch):
    config = new_config(_config(data), 1000)
    weights = first_weights(config, 0)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 1000, (2, 33))).cuda()
    found = []
    for most, compiled in ((1 << 27, False), (20_000, False), (20_000, True)):
        monkeypatch.setattr("glassloop.train.network._MOST_LOGITS", most)
        network = Network(config, weights, device="cuda", bf16=True, compile=compiled)
        batch = SequenceBatch(ids[:, :-1].reshape(-1), torch.arange(32).repeat(2).cuda(), 2, 32)
        with network.training():
            loss = network.loss(batch, ids[:, 1:].reshape(-1))
        loss.backward()
        found.append((loss.item(), network.parameters["token_embedding.weight"].grad))
    for loss, gradient in found[1:]:
        assert abs(loss - found[0][0]) < 1e-3 * loss
        assert float((gradient - found[0][1]).abs().max()) < 0.03 * float(gradient.abs().max())


def test_nan_stops_the_run_and_keeps_the_last_checkpoint(data, tmp_path: Path, monkeypatch):
    """The loss is read one step late; the weights are not touched after the first that is not finite."""
    monkeypatch.setattr(
        "glassloop.train.trainer.learning_rate", lambda _, step: float("inf") if step == 9 else 1e-3
    )
    with pytest.raises(TrainError, match=r"step 1\d: the loss is nan.* checkpoint is kept"):
        train(_config(data), tmp_path / "run", quiet=True)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    state, arrays = read_checkpoint(newest, {})
    assert state.step == 8 and all(np.isfinite(values).all() for values in arrays.values())


@pytest.mark.parametrize(
    "settings",
    [{}, {"precision": "f32"}, {"packing": "stream", "borders": False}, {"compile": True}],
)
def test_a_killed_run_ends_with_the_same_bits(data, tmp_path: Path, settings):
    config = _config(data, dropout=0.1, accumulate=2, **settings)
    whole = train(config, tmp_path / "whole", quiet=True)
    again = train(config, tmp_path / "again", quiet=True)
    assert whole.sha256 == again.sha256
    assert whole.loss < 0.8 * np.log(64)

    def die(step: int) -> None:
        if step == 10:
            raise _Killed

    with pytest.raises(_Killed):
        train(config, tmp_path / "killed", quiet=True, on_step=die)
    assert resume(tmp_path / "killed", quiet=True).sha256 == whole.sha256


def test_compiled_loss_learns_the_same(data, tmp_path: Path):
    plain = train(_config(data), tmp_path / "plain", quiet=True)
    compiled = train(_config(data, compile=True), tmp_path / "compiled", quiet=True)
    assert abs(plain.validation - compiled.validation) < 0.05
