"""Distillation: the loss is KL(teacher ‖ student) by its definition, and a student comes closer to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from train.small import text_file, tiny_run

from glassloop.model.loader import ModelFiles
from glassloop.train.config import TrainError
from glassloop.train.curves import read_points
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.network import Network
from glassloop.train.train import train


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    config = tiny_run(text_file(folder), steps=30, validate_every=0, checkpoint_every=30)
    return train(config, folder / "run", quiet=True).folder


def _batch(count: int = 20) -> tuple[SequenceBatch, torch.Tensor]:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 25, count + 1))
    targets = ids[1:].clone()
    targets[3] = -100  # a row that the loss does not count
    return SequenceBatch(ids[:-1], torch.arange(count), 1, count), targets


def test_loss_is_the_divergence_by_its_definition(teacher, monkeypatch):
    files = ModelFiles(teacher)
    knows = Network(files.config, files.weights)
    other = {name: tensor._replace(data=tensor.data) for name, tensor in files.weights.items()}
    student = Network(files.config, other)
    batch, targets = _batch()
    assert abs(student.distillation(batch, targets, knows, 1.0).item()) < 1e-4  # the same model
    with torch.no_grad():
        for weight in student.parameters.values():
            weight.mul_(0.7)
    counted = targets >= 0
    with torch.no_grad():
        own, wanted = (torch.log_softmax(each.logits(batch)[counted], -1) for each in (student, knows))
    expected = torch.nn.functional.kl_div(own, wanted, log_target=True, reduction="sum")
    found = student.distillation(batch, targets, knows, 1.0)
    assert torch.allclose(found, expected, rtol=1e-4)
    mixed = student.distillation(batch, targets, knows, 0.25)
    assert torch.allclose(mixed, 0.25 * expected + 0.75 * student.loss(batch, targets), rtol=1e-4)
    monkeypatch.setattr("glassloop.train.network._MOST_LOGITS", 6 * files.config.vocab_size)
    assert torch.allclose(student.distillation(batch, targets, knows, 1.0), expected, rtol=1e-4)
    found.backward()
    assert student.parameters["layers.0.q.weight"].grad is not None
    assert knows.parameters["layers.0.q.weight"].grad is None


def test_a_student_comes_closer_to_its_teacher(teacher, tmp_path):
    settings = {"tokenizer": str(teacher), "teacher": str(teacher), "layers": 1, "steps": 25}
    made = train(tiny_run(text_file(tmp_path), **settings), tmp_path / "run", quiet=True)
    losses = [p["loss"] for p in read_points(tmp_path / "run" / "curves.jsonl") if "loss" in p]
    assert 0 < losses[-1] < 0.5 * losses[0]
    assert made.validation is not None


def test_a_teacher_with_other_tokens_is_refused(teacher, tmp_path):
    (tmp_path / "text.txt").write_text("abc " * 200)
    config = tiny_run(str(tmp_path / "text.txt"), teacher=str(teacher))
    with pytest.raises(TrainError, match="teacher has a vocabulary of"):
        train(config, tmp_path / "run", quiet=True)
