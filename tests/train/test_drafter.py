"""A drafter: the text that the model writes itself, the training, the file, and its numbers in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from engine.small import EOS, finish, loop, model, naive, random_weights, request, same
from train.small import text_file, tiny_run

from glassloop import LLM
from glassloop.decode.sampling import Sampling
from glassloop.engine.drafting.chain_drafts import ChainDrafts
from glassloop.errors import GlassloopError, ModelError
from glassloop.model.cache import Branches
from glassloop.model.drafter import DrafterFile, read_drafter
from glassloop.model.transformer import Transformer
from glassloop.ops.drafting import ChainRequest
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.tensor import Tensor
from glassloop.train import drafter
from glassloop.train.commands import main
from glassloop.train.drafter import Documents, DrafterTrainer, DrafterTraining, Target, pad
from glassloop.train.self_text import (
    ChatFrame,
    TextWriter,
    first_repetition,
    merge,
    read_questions,
    write_text,
)
from glassloop.train.tokens import DataError, TokenFiles
from glassloop.train.train import train

FRAME = ChatFrame(list(b"Q: "), [EOS, *b" A: "])
SETTINGS = {"vocab_size": 64, "batch": 600, "steps": 40, "warm_up": 4, "held_out": 8, "length": 48}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TokenFiles:
    """Conversations that the small model has written."""
    writer = TextWriter(
        model(), FRAME, [EOS], seeds=[list(b"why"), list(b"when")], slots=12, length=48, seed=1
    )
    return write_text(writer, tmp_path_factory.mktemp("text") / "text", 257, tokens=4000)


@pytest.fixture(scope="module")
def trained(text) -> DrafterTrainer:
    torch.manual_seed(0)
    target = Target(model().config, random_weights(model().config), "cpu", bf16=False)
    trainer = DrafterTrainer(target, text, DrafterTraining(**SETTINGS), lambda line: None)
    trainer.first = [float(trainer.loss(batch).detach()) for batch in trainer.batches(0)]
    trainer.reached = trainer.train()
    return trainer


def _documents(text: TokenFiles):
    start = 0
    for end in text.ends.tolist():
        yield text.read(start, end)
        start = end


def test_a_model_writes_questions_and_answers(text):
    asked, given = 0, 0
    for ids, learned in _documents(text):
        words = bytes(token if token < 256 else 0 for token in ids.tolist())
        answer = int(learned.argmax())
        assert words.startswith(b"Q: ") and words[:answer].endswith(b"\0 A: ")
        assert learned[answer:].all() and not learned[:answer].any()
        assert len(ids) == 48 or ids[-1] == EOS or (len(ids) < 48 and first_repetition(ids) == len(ids))
        given += words[:answer] in (b"Q: why\0 A: ", b"Q: when\0 A: ")
        asked += 1
    assert 0 < given < asked
    assert text.tokens >= 4000


def test_greedy_answers_are_those_of_the_engine(text):
    """An answer with temperature 0 is what the engine generates after the same prompt."""
    greedy = 0
    for ids, learned in list(_documents(text))[:12]:
        answer = int(learned.argmax())
        prompt, given = ids[:answer].tolist(), ids[answer:].tolist()
        sampling = Sampling(temperature=0, max_tokens=len(given))
        (run,) = finish(loop(model()), request(prompt, sampling))
        greedy += run.token_ids == [token for token in given if token != EOS]
    assert greedy > 0


def test_questions_are_read_from_jsonl(tmp_path):
    path = tmp_path / "seeds.jsonl"
    lines = [{"question": "a"}, {"prompt": "b"}, {"instruction": "c", "instances": [{"input": "d"}]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_questions(path) == ["a", "b", "c\nd"]
    for wrong in ("{", '{"text": "x"}', "[1]", '{"question": 1}'):
        path.write_text(f'{{"question": "a"}}\n{wrong}')
        with pytest.raises(DataError, match="line 2"):
            read_questions(path)


def test_an_answer_that_goes_round_in_circles_is_cut():
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, 4 if rng.random() < 0.5 else 50_000, int(rng.integers(1, 120)))
        if rng.random() < 0.7:
            ids = np.concatenate([ids, np.tile(rng.integers(0, 9, int(rng.integers(1, 30))), 9)])
        grams = [tuple(ids[at : at + 16]) for at in range(len(ids) - 15)]
        third = [at for at, gram in enumerate(grams) if grams[:at].count(gram) == 2]
        assert first_repetition(ids) == (third[0] if third else len(ids))


def test_folders_of_text_are_merged(text, tmp_path):
    both = merge([text.folder, text.folder], tmp_path / "both", 257)
    assert both.tokens == 2 * text.tokens and both.documents == 2 * text.documents
    assert np.array_equal(both.read(0, 48)[0], text.read(0, 48)[0])


def test_training_lowers_the_loss(trained):
    last = [float(trained.loss(batch).detach()) for batch in trained.batches(0)]
    assert np.mean(last) < 0.9 * np.mean(trained.first)
    assert trained.reached["steps"] == 40
    for temperature in (0.0, 0.8):
        rates = trained.acceptance(trained.held_out_batches(), temperature)
        assert len(rates) == 3 and all(0 <= rate <= 1 for rate in rates)


def _plain_loss(trainer: DrafterTrainer, batch: Documents) -> torch.Tensor:
    """The mean over the steps of a chain, each weighing 0.8 of the one before, of the mean cross-entropy of
    what it drafts with respect to the model's distribution, step by step and with all logits at once."""
    features, hidden = trainer.target.features(batch.packed, trainer.config.features)
    learned = torch.from_numpy(batch.learned).reshape(batch.learned.shape)
    ids = torch.from_numpy(trainer.tokens.astype(np.int64))
    total, weights = torch.zeros(()), 0.0
    for number, state in enumerate(trainer.chain(batch, features)):
        documents, places = torch.nonzero(learned, as_tuple=True)
        rows = [
            d * learned.shape[1] + p - 1
            for d, p in zip(documents.tolist(), places.tolist(), strict=True)
            if p >= 1 and p + number + 1 < learned.shape[1] and learned[d, p + number + 1]
        ]
        wanted = (hidden[[row + number + 1 for row in rows]] @ trainer.target.head()[ids].T).softmax(-1)
        own = trainer.drafter.logits(state[rows]).log_softmax(-1)
        total = total - 0.8**number * (wanted * own).sum() / max(1, len(rows))
        weights += 0.8**number
    return total / weights


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("most_logits", [1 << 20, 500])
def test_the_loss_in_pieces_is_the_plain_one(trained, monkeypatch, rounded, most_logits):
    """The same loss and the same gradients as by the definition, however many rows are computed at once."""
    monkeypatch.setitem(drafter._MOST_LOGITS, "cpu", most_logits)
    monkeypatch.setattr(trained.ops, "rounded", rounded)
    batch = next(iter(trained.batches(3)))
    found = {}
    for name, loss in (("pieces", trained.loss), ("plain", lambda batch: _plain_loss(trained, batch))):
        value = loss(batch)
        made = torch.autograd.grad(value, list(trained.parameters.values()), allow_unused=True)
        found[name] = [value.detach(), *made]
    for one, other in zip(*found.values(), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_kept_features_give_the_loss_of_computed_ones(trained, monkeypatch):
    batch = next(iter(trained.batches(3)))
    computed = trained.loss(batch)
    monkeypatch.setattr(trained, "_kept", None)
    trained.keep_features()
    monkeypatch.setattr(trained.target, "features", None)  # the model is not computed again
    assert float(trained.loss(batch).detach()) == pytest.approx(float(computed.detach()), rel=2e-3)


def test_rows_of_several_answers_in_one_document_are_counted_by_each_step():
    learned = np.array([0, 1, 1, 0, 0, 1, 1, 1, 1, 0], bool)
    batch = pad([(np.arange(10), learned), (np.arange(4), np.zeros(4, bool))], "cpu", [0, 10])
    assert [batch.rows(number).tolist() for number in range(3)] == [[0, 4, 5, 6], [4, 5], [1, 4]]
    rows, begins, factors = batch.aligned(3)
    assert rows.tolist() == [1, 4, 5, 6, 7]
    for number in range(3):
        counted = factors[number] > 0
        assert begins[number][counted].tolist() == batch.rows(number).tolist()
    assert float(factors.sum()) == pytest.approx(1)


def test_no_counted_row_gives_a_loss_of_zero(trained):
    batch = pad([(np.arange(6), np.zeros(6, bool))], "cpu", [0])
    loss = trained.loss(batch)
    loss.backward()
    assert float(loss.detach()) == 0


def _drafting(trained: DrafterTrainer) -> Transformer:
    """The small model with the drafter as it was trained, unrounded."""
    weights = {
        name: Tensor.of(name, value.detach().numpy().copy()) for name, value in trained.parameters.items()
    }
    drafter = DrafterFile(Path("trained"), trained.config, trained.tokens, weights)
    return Transformer(model().config, random_weights(model().config), NativeOps(), drafter)


def test_the_engine_computes_what_was_trained(trained, text):
    """States and drafts of C are those of torch, at every place of some documents."""
    small = _drafting(trained)
    assert small.chain is not None
    trained.ops.rounded = False
    compared = 0
    for ids, learned in list(_documents(text))[:4]:
        batch = pad([(ids, learned)], "cpu", [0])
        features, _ = trained.target.features(batch.packed, trained.config.features)
        with torch.no_grad():
            states = trained.drafter.state(features).numpy()
            chain = list(trained.chain(batch, features))
            logits = [trained.drafter.logits(state).numpy() for state in chain]
        branches, tokens = Branches(small, 100), ids.tolist()
        work = branches.batch([(0, 0, tokens)], every_logit=True)
        found = small.forward_with_states(work, branches.pages)[1]
        assert np.allclose(found, states, atol=2e-2)
        for at in range(0, len(tokens) - 4, 3):
            # The first draft after the token `at + 1`; later ones follow what was drafted, not the text.
            drawn = small.chain.draw(
                branches.batch([(0, at, tokens[at + 1 : at + 2])]),
                branches.pages,
                found[at : at + 1],
                [ChainRequest(None, at + 2, 1.0, 2, [1.0] * 8, [0.0] * 2, [0.0] * 2)],
            )[0]
            for number in range(2):
                row = logits[number][at]
                place = int(np.searchsorted(trained.tokens, drawn.tokens[number]))
                assert row.max() - row[place] < 0.1
                compared += 1
                if drawn.tokens[number] != tokens[at + 2]:
                    break
    assert compared > 40


def test_a_trained_drafter_changes_no_token_and_is_sometimes_right(trained, monkeypatch):
    small = _drafting(trained)
    engine = loop(small)
    assert isinstance(engine.drafts, ChainDrafts)
    monkeypatch.setattr(engine.drafts.step_cost, "saw", lambda rows, seconds: None)
    requests = [
        request([*b"Q: why", *FRAME.after], Sampling(temperature=t, max_tokens=60, seed=2, ignore_eos=True))
        for t in (0.0, 0.8)
    ]
    runs = finish(engine, *requests)
    assert all(same(run, naive(small, run)) for run in runs)
    assert sum(run.drafts.accepted for run in runs) > 0


def test_the_file_is_read_back(trained, tmp_path):
    path = tmp_path / "drafter.gguf"
    recipe = trained.export(path, random_weights(model().config), {"reached": trained.reached})
    read = read_drafter(path, model().config)
    assert read.config == trained.config and np.array_equal(read.tokens, trained.tokens)
    assert recipe["text"]["sha256"] == trained.text.sha256 and recipe["sha256"]
    assert json.loads(path.with_suffix(".json").read_text()) == recipe
    trained.ops.rounded = True
    for name, value in trained.parameters.items():  # the rounding that was trained with is that of the file
        stored = read.weights[name].float32()
        if value.ndim == 2:
            x = torch.eye(value.shape[1])
            seen = trained.ops.linear(x, trained.ops.matrices[name], None).T.detach().numpy()
            assert np.allclose(stored, seen, atol=1e-3), name
        else:
            assert np.allclose(stored, value.detach().numpy())
    data = bytearray(path.read_bytes())
    for wrong, message in (
        (data.replace(b"glassloop-drafter", b"glassloop-DRAFTER"), "not a drafter"),
        (data.replace(b"drafter.ffn_dim", b"drafter.ffn_dum"), "drafter.ffn_dim"),
        (data[:-100], "truncated"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(ModelError, match=message):
            read_drafter(path, model().config)


def test_the_command_makes_a_drafter_that_the_engine_takes(tmp_path, capsys):
    data = text_file(tmp_path)
    folder = train(tiny_run(data, validate_every=0, checkpoint_every=12), tmp_path / "run", quiet=True).folder
    main(["prepare", str(tmp_path / "tokens"), "--data", data, "--tokenizer", str(folder)])
    flags = ["--steps", "6", "--batch", "256", "--length", "32", "--vocab-size", "16", "--json"]
    made = ["drafter", str(tmp_path / "out"), "--for", str(folder), "--text", str(tmp_path / "tokens")]
    capsys.readouterr()
    main([*made, *flags])
    recipe = json.loads(capsys.readouterr().out)
    path = tmp_path / "out" / recipe["file"]
    options = {"max_tokens": 30, "ignore_eos": True, "seed": 3}
    with LLM(folder, draft=path) as drafting, LLM(folder, draft=False) as plain:
        assert drafting.transformer.chain is not None and plain.transformer.chain is None
        for temperature in (0, 0.8):
            runs = [llm.generate("A cat ", temperature=temperature, **options) for llm in (drafting, plain)]
            assert runs[0].tokens == runs[1].tokens
    with pytest.raises(GlassloopError, match="needs the op set native"):
        LLM(folder, ops="reference", draft=path)
    with pytest.raises(GlassloopError, match="steps is 0"):
        main([*made, "--steps", "0"])
    with pytest.raises(GlassloopError, match="no chat template"):
        main([*made[:4], "--steps", "1", "--slots", "2"])
