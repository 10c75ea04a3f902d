"""Exposure bias: the divergences are those of their definition, and a perfect student has none."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from train.small import text_file, tiny_run

from glassloop.train.commands import main
from glassloop.train.config import TrainError
from glassloop.train.curves import read_points
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.research.data_prompts import data_prompts
from glassloop.train.research.exposure import exposure_svg, exposure_text, load_network, measure_exposure
from glassloop.train.sample_text import after_end, sample_batch
from glassloop.train.train import resume, train


class _Killed(Exception):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exposure")
    config = tiny_run(text_file(folder), steps=30, validate_every=0, checkpoint_every=30)
    train(config, folder / "teacher", quiet=True)
    return folder


def _student(folder, name: str, **settings):
    teacher = str(folder / "teacher" / "model")
    values = {"tokenizer": teacher, "teacher": teacher, "layers": 1, "sample_every": 0, **settings}
    return tiny_run(text_file(folder), **values), folder / name


def test_divergences_are_those_of_their_definition(folder):
    teacher = load_network(folder / "teacher" / "model", "cpu")
    student = load_network(folder / "teacher" / "model", "cpu")
    prompts, _ = data_prompts([text_file(folder)], str(folder / "teacher" / "model"), 5, 4, 0)
    assert prompts.shape == (5, 4)
    same = measure_exposure(teacher, student, prompts, 7)
    assert np.abs(same.on_teacher).max() < 1e-5  # the same model
    assert np.array_equal(same.on_teacher, same.on_student)  # and the same texts
    with torch.no_grad():
        for weight in student.weights.values():
            weight.mul_(0.8)
    found = measure_exposure(teacher, student, prompts, 7, seed=3, batch=2)
    assert found.on_teacher.shape == found.on_student.shape == (5, 7)
    for writer, values in ((teacher, found.on_teacher), (student, found.on_student)):
        ids = torch.cat([sample_batch(writer, prompts[at : at + 2], 7, 3 + at) for at in (0, 2, 4)])
        for row in range(5):
            for at in range(7):
                seen = ids[row, : 4 + at]
                batch = SequenceBatch(seen, torch.arange(len(seen)), 1, len(seen))
                p, q = (torch.softmax(each.logits(batch)[-1].double(), -1) for each in (teacher, student))
                expected = float((p * (p / q).log()).sum())
                assert values[row, at] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert found.mean("teacher").low <= found.mean("teacher").value <= found.mean("teacher").high
    assert "on its own" in exposure_text({"student": found})
    picture = ElementTree.fromstring(exposure_svg({f"a <b> & {number}": found for number in range(8)}))
    space = "{http://www.w3.org/2000/svg}"
    names = [float(each.get("y", 0)) for each in picture.iter(f"{space}text") if "<b>" in (each.text or "")]
    curves = [each for each in picture.iter(f"{space}polyline") if each.get("stroke") != "#ddd"]
    points = [point.split(",") for each in curves for point in each.get("points", "").split()]
    assert len(names) == 8 and len(curves) == 16
    assert max(names) < min(float(y) for _, y in points)  # the names are above all curves


def test_sampling_follows_the_distribution(folder):
    """The share of each first token is its probability, within five standard errors."""
    network = load_network(folder / "teacher" / "model", "cpu")
    prompt = torch.tensor([[5, 9, 11]])
    with torch.no_grad():
        chances = torch.softmax(network.logits(SequenceBatch(prompt[0], torch.arange(3), 1, 3))[-1], -1)
    drawn = sample_batch(network, prompt.expand(3000, 3), 1, seed=1)[:, 3]
    shares = torch.bincount(drawn, minlength=len(chances)) / 3000
    assert ((shares - chances).abs() <= 5 * (chances * (1 - chances) / 3000).sqrt() + 1e-3).all()
    assert torch.equal(drawn, sample_batch(network, prompt.expand(3000, 3), 1, seed=1)[:, 3])


def test_what_comes_after_an_end_is_not_counted():
    ids = torch.tensor([[5, 1, 2, 1, 7], [5, 6, 7, 8, 9]])
    assert after_end(ids, (1,)).tolist() == [[False, False, True, True, True], [False] * 5]
    assert not after_end(ids, ()).any()


def test_on_policy_distillation_is_resumed_exactly_and_learns(folder):
    config, place = _student(folder, "own", on_policy=0.5, on_policy_prompt=4, steps=16)
    whole = train(config, place, quiet=True)
    losses = [point["loss"] for point in read_points(place / "curves.jsonl") if "loss" in point]
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])

    def die(step: int) -> None:
        if step == 7:
            raise _Killed

    with pytest.raises(_Killed):
        train(config, folder / "killed", quiet=True, on_step=die)
    assert resume(folder / "killed", quiet=True).sha256 == whole.sha256
    plain, other = _student(folder, "plain", steps=16)
    assert train(plain, other, quiet=True).sha256 != whole.sha256


def test_the_command_and_its_errors(folder, capsys):
    teacher, picture = str(folder / "teacher" / "model"), folder / "curves.svg"
    flags = ["--teacher", teacher, "--data", text_file(folder), "--device", "cpu"]
    small = ["--texts", "4", "--tokens", "6", "--prompt-tokens", "3"]
    main(["exposure", teacher, *flags, *small, "--svg", str(picture), "--json"])
    facts = json.loads(capsys.readouterr().out)[teacher]
    assert facts["texts"] == 4 and len(facts["on_student"]["by_position"]) == 6
    ElementTree.parse(picture)
    with pytest.raises(TrainError, match="context is 32"):
        main(["exposure", teacher, *flags, "--tokens", "40", "--texts", "4"])
    with pytest.raises(TrainError, match="texts is 0"):
        main(["exposure", teacher, *flags, "--texts", "0"])
    with pytest.raises(TrainError, match="on_policy needs a model to distil"):
        tiny_run(text_file(folder), on_policy=0.5)
