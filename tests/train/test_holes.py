"""A gated adapter: clean rows stay as they are, masked rows see what they may, and training goes on where it
was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine.small import model
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.random_models import random_tensor
from train.small import tiny_run

from glassloop.model.adapter import read_adapter
from glassloop.model.cache import Branches
from glassloop.model.transformer import Transformer
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.train.adapter_file import write_adapter_file
from glassloop.train.checkpoint import newest_checkpoint
from glassloop.train.commands import main
from glassloop.train.config import TrainError
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.model_folder import write_model_folder
from glassloop.train.network import Network
from glassloop.train.research import hole_network
from glassloop.train.research.hole_network import HoleNetwork
from glassloop.train.research.hole_training import HolesConfig, Texts, make_layout, train_holes
from glassloop.train.research.masking import Layout, blocks, holes, masked_at, span_order
from glassloop.train.token_files import TokenFiles, TokenWriter

CONFIG = replace(model().config, family="llama")
TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
MASK = 3


def _weights():
    rng = np.random.default_rng(0)
    return {name: random_tensor(rng, name, shape, FORMATS["F32"]) for name, shape in CONFIG.shapes().items()}


@pytest.fixture(scope="module")
def network() -> HoleNetwork:
    """A model with an adapter of random values, not the zeros that training begins with."""
    made = HoleNetwork(CONFIG, _weights(), rank=4, scale=0.5, mask_token=MASK, targets=TARGETS)
    torch.manual_seed(0)
    with torch.no_grad():
        made.flat.normal_(std=0.3)
    return made


def _tokens(sequences: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (sequences, length))


def _naive(network: HoleNetwork, tokens: list[int], positions: list[int], masked: list[bool]) -> np.ndarray:
    """The logits of all rows of one text in NumPy, row by row: clean rows first, then masked ones. A clean
    row sees the clean ones up to itself, a masked row all."""
    weights = {name: tensor.float32().astype(float) for name, tensor in _weights().items()}
    parts = {name: part.astype(float) for name, part in network.arrays().items()}
    x = weights["token_embedding.weight"][tokens]
    x = x + np.array(masked)[:, None] * parts["embedding"]

    def norm(rows, name):
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def linear(rows, name):
        y = rows @ weights[f"{name}.weight"].T
        added = 0.5 * (rows @ parts[f"{name}.down"].T) @ parts[f"{name}.up"].T
        return y + np.array(masked)[:, None] * added

    def rotated(rows, heads):
        rows = rows.reshape(len(rows), heads, 16)
        turns = np.array(positions)[:, None] * 10000.0 ** (-np.arange(8) / 8)
        cos, sin = np.cos(turns)[:, None], np.sin(turns)[:, None]
        a, b = rows[..., :8], rows[..., 8:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    for layer in range(len(CONFIG.layers)):
        at = f"layers.{layer}."
        h = norm(x, f"{at}attn_norm")
        q, k = rotated(linear(h, f"{at}q"), 4), rotated(linear(h, f"{at}k"), 2)
        v = linear(h, f"{at}v").reshape(len(x), 2, 16)
        mixed = np.zeros((len(x), 4, 16))
        for row in range(len(x)):
            reach = len(x) if masked[row] else row + 1
            for head in range(4):
                scores = k[:reach, head // 2] @ q[row, head] * 0.25
                shares = np.exp(scores - scores.max())
                mixed[row, head] = shares / shares.sum() @ v[:reach, head // 2]
        x = x + linear(mixed.reshape(len(x), 64), f"{at}o")
        h = norm(x, f"{at}ffn_norm")
        gate = linear(h, f"{at}gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{at}up"), f"{at}down")
    return norm(x, "final_norm") @ weights["head.weight"].T


def test_masked_rows_are_those_of_the_definition(network):
    tokens = _tokens(2, 20)
    hidden, given = np.array([[3, 4, 5, 11], [0, 1, 18, 19]]), np.array([[6, 10], [2, 9]])
    layout = masked_at(tokens, hidden, given)
    assert layout.clean_positions[0].tolist() == [0, 1, 2, 7, 8, 9, *range(12, 20), 6, 10]
    with torch.no_grad():
        found = network.logits(layout.batch(MASK)[0]).numpy().reshape(2, 4, -1)
    for number in range(2):
        clean = layout.clean_tokens[number].tolist()
        places = [*layout.clean_positions[number].tolist(), *hidden[number].tolist()]
        flags = [False] * len(clean) + [True] * 4
        expected = _naive(network, [*clean, *[MASK] * 4], places, flags)
        assert np.allclose(found[number], expected[len(clean) :], atol=1e-4)


def test_clean_rows_do_not_change(network):
    """With an adapter of large values and masked rows beside them, clean rows are those of the model."""
    tokens = _tokens(3, 24)
    rows = torch.from_numpy(tokens.reshape(-1))
    batch, _ = masked_at(tokens, np.tile([22, 23], (3, 1))).batch(MASK)
    batch.wanted = torch.arange(3 * 22)
    with torch.no_grad():
        found = network.logits(batch).reshape(3, 22, -1)
        plain = SequenceBatch(rows, torch.arange(24).repeat(3), sequences=3, length=24)
        expected = Network(CONFIG, _weights()).logits(plain).reshape(3, 24, -1)
    assert torch.allclose(found, expected[:, :22], atol=1e-5)


@given(st.sampled_from([4, 8]), st.integers(0, 6), st.integers(0, 100))
@settings(max_examples=12, deadline=None)
def test_a_block_is_the_end_of_its_text(network, width, given, seed):
    """Each block gets the logits that it has alone, in a text that ends with it."""
    tokens = _tokens(2, 40, seed)
    layout = blocks(tokens, width, 2, given, np.random.default_rng(seed))
    batch, targets = layout.batch(MASK)
    with torch.no_grad():
        found = network.logits(batch).reshape(2, 2 * width - given, -1)
    assert targets.tolist() == layout.targets.reshape(-1).tolist()
    assert layout.starts is not None and (layout.starts >= 8).all()
    for number in range(2):
        for block in range(2):
            start = int(layout.starts[number, block])
            inside = np.arange(start, start + width)
            rows = np.flatnonzero(np.isin(layout.masked_positions[number], inside))
            if not len(rows):
                continue
            hidden = layout.masked_positions[number][rows][None]
            shown = np.setdiff1d(inside, hidden)[None]
            alone = masked_at(tokens[number : number + 1, : start + width], hidden, shown)
            with torch.no_grad():
                expected = network.logits(alone.batch(MASK)[0])
            assert torch.allclose(found[number, rows], expected, atol=1e-4)


@given(st.integers(1, 5), st.integers(16, 80), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_spans_are_short_and_a_text_is_masked_in_two_parts(sequences, length, seed):
    rng = np.random.default_rng(seed)
    order = span_order(sequences, length, rng)
    assert (np.sort(order, axis=1) == np.arange(length)).all()
    tokens = np.arange(sequences * length).reshape(sequences, length)
    layout = holes(tokens, length // 2, 0, rng)
    both = np.concatenate([layout.targets[:sequences], layout.targets[sequences:]], axis=1)
    assert all(len(set(row)) == 2 * (length // 2) for row in both.tolist())
    whole = np.concatenate([layout.clean_tokens, layout.targets], axis=1)
    assert (np.sort(whole, axis=1) == np.concatenate([tokens, tokens])).all()
    assert (np.diff(layout.clean_positions, axis=1) > 0).all()


def test_spans_are_of_all_lengths_up_to_16():
    order = span_order(200, 512, np.random.default_rng(0))
    # The mean length of spans, where a span that happens to follow its neighbour counts as one with it.
    lengths = 512 / (1 + (np.diff(order, axis=1) != 1).sum(1))
    counts = np.histogram(lengths, [1, 1.25, 2, 3.5, 6, 12])[0]
    assert counts.sum() == 200 and counts.min() >= 20


def test_all_steps_have_the_same_numbers_of_rows(base):
    config = _config(base)
    texts = Texts([TokenFiles(base[1])], ())
    layouts = [make_layout(config, texts, step) for step in range(40)]
    assert {(each.clean_tokens.shape, each.targets.shape) for each in layouts} == {((8, 72), (8, 24))}
    assert {each.starts is None for each in layouts} == {True, False}


def test_compiled_layers_compute_the_same(network, monkeypatch):
    """What is compiled is traced and differentiated, here without making machine code of it. All layers and
    both kinds of attention share three pieces of compiled code."""
    made = []

    def compiler(module, inputs):
        made.append(module)
        return aot_eager(module, inputs)

    from torch._dynamo.backends.debugging import aot_eager

    monkeypatch.setattr(
        hole_network,
        "_compiled_forward",
        cache(lambda: torch.compile(hole_network._forward, dynamic=False, backend=compiler, fullgraph=True)),
    )
    compiled = HoleNetwork(
        CONFIG, _weights(), rank=4, scale=0.5, mask_token=MASK, targets=TARGETS, compile=True
    )
    with torch.no_grad():
        compiled.flat.copy_(network.flat)
    rng = np.random.default_rng(0)
    for layout in (holes(_tokens(2, 48), 12, 4, rng), blocks(_tokens(4, 36), 4, 3, 4, rng)):
        batch, targets = layout.batch(MASK)
        expected = torch.autograd.grad(network.loss(batch, targets), network.flat)[0]
        found = torch.autograd.grad(compiled.loss(batch, targets), compiled.flat)[0]
        assert torch.allclose(found, expected, atol=1e-6)
    assert len(made) == 3


def test_the_loss_is_the_mean_cross_entropy_and_can_be_lowered(network):
    layout = holes(_tokens(4, 32, 1), 8, 2, np.random.default_rng(0))
    batch, targets = layout.batch(MASK)
    plain = F.cross_entropy(network.logits(batch), targets)
    (expected,) = torch.autograd.grad(plain, network.flat)
    loss = network.loss(batch, targets)
    (found,) = torch.autograd.grad(loss, network.flat)
    assert torch.isclose(loss, plain, rtol=1e-5)
    assert torch.allclose(found, expected, atol=1e-6) and expected.abs().max() > 1e-3
    learning = HoleNetwork(CONFIG, _weights(), rank=4, scale=2.0, mask_token=MASK, targets=TARGETS)
    optimizer = torch.optim.AdamW([learning.flat], lr=3e-2)
    losses = []
    for _ in range(30):
        loss = learning.loss(batch, targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 2


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a model, and one with token files."""
    folder = tmp_path_factory.mktemp("base")
    weights = {name: tensor.float32() for name, tensor in _weights().items()}
    write_model_folder(folder / "model", CONFIG, weights, {})
    writer = TokenWriter(folder / "tokens", CONFIG.vocab_size)
    for number in range(20):
        writer.add(_tokens(1, 150 + number, number)[0])
    return folder / "model", writer.finish().folder


def _config(base, **settings) -> HolesConfig:
    model, data = base
    run = {
        "model": str(model),
        "length": 96,
        "batch": 8,
        "lr": 1e-2,
        "lora_rank": 8,
        "weight_decay": 0.0,
        "checkpoint_every": 5,
    }
    own = {name: settings.pop(name) for name in list(settings) if name in ("mix", "seconds", "block_share")}
    return HolesConfig(tiny_run(str(data), **run | settings), mask_token=1, **own)


def _nats(network: HoleNetwork, layout: Layout) -> np.ndarray:
    """The cross-entropy of each masked row."""
    batch, targets = layout.batch(network.mask_token)
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(network.logits(batch), targets, reduction="none").numpy()


def test_the_file_of_a_run_has_what_was_learned(base, tmp_path):
    made = train_holes(_config(base), tmp_path / "run", quiet=True)
    assert made.steps == 12 and 0 < made.masked < made.tokens
    adapter = read_adapter(made.file, CONFIG)
    assert adapter.sha256 == made.sha256 and adapter.mask_token == 1 and adapter.rank == 8
    assert adapter.metadata["result"]["steps"] == 12
    network = HoleNetwork(CONFIG, _weights(), rank=8, scale=adapter.scale, mask_token=1, targets=TARGETS)
    layout = masked_at(_tokens(50, 32), np.tile([15, 16], (50, 1)))
    unchanged = _nats(network, layout)
    network.take(adapter)
    changed = _nats(network, layout)
    with torch.no_grad():
        state, arrays = newest_checkpoint(tmp_path / "run" / "checkpoints", {})[0]
        network.flat.copy_(torch.tensor(arrays["weight:flat"]))
    exact = _nats(network, layout)
    assert state.step == 12
    assert np.abs(changed - exact).mean() < 0.05 * np.abs(unchanged - exact).mean()


class _Killed(Exception):
    pass


def test_a_stopped_run_ends_with_the_same_bits(base, tmp_path):
    config = _config(base)
    whole = train_holes(config, tmp_path / "whole", quiet=True)

    def kill(step: int) -> None:
        if step == 8:
            raise _Killed

    with pytest.raises(_Killed):
        train_holes(config, tmp_path / "killed", quiet=True, on_step=kill)
    resumed = train_holes(config, tmp_path / "killed", quiet=True)
    one, other = (read_adapter(made.file, CONFIG) for made in (whole, resumed))
    assert all(np.array_equal(one.delta(stem), other.delta(stem)) for stem in one.matrices)
    with pytest.raises(TrainError, match="another run"):
        train_holes(replace(config, block_share=0.5), tmp_path / "killed", quiet=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mix": (1.0, 2.0)}, "mix has 2 numbers"),
        ({"mix": (0.0,)}, "mix is"),
        ({"seconds": -1.0}, "seconds is"),
        ({"block_share": 2.0}, "block_share is"),
        ({"lora_rank": 0}, "lora_rank is 0"),
        ({"length": 60}, "length is 60"),
        ({"batch": 3}, "batch is 3"),
    ],
)
def test_bad_settings_are_refused_in_words(base, settings, words):
    with pytest.raises(TrainError, match=words):
        _config(base, **settings)


def test_the_command_trains_and_goes_on(base, tmp_path, capsys):
    """A run that is done is not computed again."""
    model, data = base
    flags = f"--model {model} --data {data} --mask-token 1 --length 96 --batch 4 --steps 3 --lora-rank 4"
    flags += " --threads 1 --device cpu --quiet --json"
    results = []
    for _ in range(2):
        main(["holes", str(tmp_path / "run"), *flags.split()])
        results.append(json.loads(capsys.readouterr().out))
    assert results[0]["steps"] == 3 and read_adapter(results[0]["file"], CONFIG).rank == 4
    assert {name: results[1][name] for name in ("steps", "tokens", "masked")} == {
        name: results[0][name] for name in ("steps", "tokens", "masked")
    }
    with pytest.raises(TrainError, match="lr is -1"):
        main(["holes", str(tmp_path / "other"), *flags.split(), "--lr", "-1"])


def test_a_run_ends_within_its_seconds(base, tmp_path):
    made = train_holes(_config(base, steps=100_000, seconds=0.5), tmp_path, quiet=True)
    assert 0 < made.steps < 100_000


@pytest.mark.parametrize("given", [0, 2])
def test_the_engine_computes_what_was_trained(network, tmp_path, given):
    """Masked rows of a hole, some of whose tokens are filled already, on the op set of the engine."""
    pairs, vector = network.matrices()
    path = tmp_path / "holes.safetensors"
    write_adapter_file(path, pairs, network.scale, name="holes", embedding=vector, mask_token=MASK)
    adapter = read_adapter(path, CONFIG)
    trained = HoleNetwork(CONFIG, _weights(), rank=4, scale=0.5, mask_token=MASK, targets=TARGETS)
    trained.take(adapter)
    tokens, hidden = _tokens(1, 24)[0], np.arange(9, 14)
    shown, masked = hidden[:given], hidden[given:]
    layout = masked_at(tokens[None], masked[None], shown[None])
    with torch.no_grad():
        expected = trained.logits(layout.batch(MASK)[0]).numpy()
    transformer = Transformer(CONFIG, _weights(), ReferenceOps())
    number = transformer.load_adapter(adapter)
    cache = Branches(transformer, 64)
    clean = layout.clean_tokens[0].tolist()
    batch = cache.batch([(0, 0, [*clean, *[MASK] * len(masked)])], every_logit=True)
    reach = [*range(1, len(clean) + 1), *[24] * len(masked)]
    batch = batch._replace(
        positions=[*layout.clean_positions[0].tolist(), *masked.tolist()],
        reach=reach,
        adapters=[0] * len(clean) + [number] * len(masked),
    )
    found = transformer.ops.host(transformer.forward(batch, cache.pages))[len(clean) :]
    assert np.allclose(found, expected, atol=1e-3)
