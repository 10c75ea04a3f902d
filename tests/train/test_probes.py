"""What training does, seen: the end of a text is learned, and embeddings find their neighbours."""

from __future__ import annotations

import json

import numpy as np
import pytest
from train.small import tiny_run

from glassloop.model.loader import ModelFiles
from glassloop.train.commands import main
from glassloop.train.config import TrainError
from glassloop.train.network import Network
from glassloop.train.probes import neighbours
from glassloop.train.run_history import history
from glassloop.train.train import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on texts that end after a full stop, and only there."""
    folder = tmp_path_factory.mktemp("ends")
    lines = [json.dumps({"text": "abab cdcd"[: 3 + number % 6] + "."}) for number in range(120)]
    (folder / "text.jsonl").write_text("\n".join(lines))
    config = tiny_run(str(folder / "text.jsonl"), steps=40, validate_every=20, probe=("a", "."))
    train(config, folder / "run", quiet=True)
    return folder / "run"


def test_the_end_of_a_text_is_learned(folder):
    entries = {entry["step"]: entry for entry in history(folder)}
    before, after = entries[0]["end_probability"], entries[40]["end_probability"]
    assert max(before) < 0.3 and abs(before[0] - before[1]) < 0.1  # a new model does not know
    assert after[0] > 0.7 and after[1] < 0.1


def test_neighbours_are_those_with_the_largest_cosine(folder):
    files = ModelFiles(folder / "model")
    table = files.weights["token_embedding.weight"].float32().astype(np.float64)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    network = Network(files.config, files.weights)
    for token in range(len(table)):
        found = neighbours(network, token, 3)
        cosines = table @ table[token]
        cosines[token] = -2
        expected = np.argsort(-cosines)[:3]
        assert [each for each, _ in found] == expected.tolist()
        assert np.allclose([value for _, value in found], cosines[expected], atol=1e-5)
    last = history(folder)[-1]["neighbours"]
    tokenizer = files.tokenizer()
    ids = [token for token, _ in neighbours(network, tokenizer.encode("a")[0])]
    assert last["a"] == [tokenizer.piece(token) for token in ids]


def test_show_prints_every_step(folder, capsys):
    main(["show", str(folder)])
    text = capsys.readouterr().out
    assert "p(end) at ends" in text and "closest to 'a'" in text and "── step 40 ──" in text
    main(["show", str(folder), "--json"])
    assert [entry["step"] for entry in json.loads(capsys.readouterr().out)] == [0, 20, 40]
    with pytest.raises(TrainError, match=r"has no config\.toml"):
        main(["show", str(folder.parent)])
