"""`train` and `resume`: a training run from its config to a model in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from glassloop.train.config import TrainConfig, need_torch
from glassloop.train.progress import Progress
from glassloop.train.run_folder import RunFolder


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    folder: Path  # of the model or of the adapter
    sha256: str  # of its weights file
    steps: int
    tokens: int
    loss: float | None  # of the last step
    validation: float | None  # of the weights that are kept: the last ones, or the best ones with patience
    seconds: float


def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    quiet: bool = False,
    on_step: Callable[[int], None] = lambda step: None,
) -> Trained:
    """Trains a model as the config says, with everything that belongs to the run in a folder."""
    _load_torch(quiet)
    from glassloop.train.machine import settled

    RunFolder(Path(folder)).create(settled(config))
    return resume(folder, quiet=quiet, on_step=on_step)


def resume(
    folder: str | Path, *, quiet: bool = False, on_step: Callable[[int], None] = lambda step: None
) -> Trained:
    """Goes on with a run from its last checkpoint. The result has the same bits as without the stop."""
    place = RunFolder(Path(folder))
    config = place.read_config()
    if place.result is None:
        _load_torch(quiet)
        from glassloop.train.machine import set_up

        with place.locked(), set_up(config):
            if place.result is None:
                return _run(config, place, quiet, on_step)
    done = place.result
    assert done is not None
    return Trained(**{**done, "folder": place.adapter if config.lora_rank else place.model})


def _load_torch(quiet: bool) -> None:
    """Loads torch, which takes some seconds, and says so."""
    need_torch()
    if "torch" not in sys.modules:
        Progress(1, 0, quiet).say("loading torch")
        import torch  # noqa: F401


def _run(config: TrainConfig, place: RunFolder, quiet: bool, on_step: Callable[[int], None]) -> Trained:
    from glassloop.model.fingerprint import fingerprint
    from glassloop.train import lora
    from glassloop.train.export import write_model_folder
    from glassloop.train.machine import choose_device, environment
    from glassloop.train.network import Network
    from glassloop.train.subject import load_subject, load_teacher
    from glassloop.train.trainer import Trainer

    say = Progress(config.steps, 0, quiet).say
    device = choose_device(config)
    subject = load_subject(config, place.path, say)
    network = Network(
        subject.config,
        subject.weights,
        device=device,
        dropout=config.dropout,
        bf16=config.precision == "bf16",
        compile=config.compile,
    )
    if config.lora_rank:
        lora.add_adapters(network, config)
    place.write_json("environment.json", environment(device))
    place.write_json(
        "data.json",
        {
            "sha256": subject.files.sha256,
            "documents": subject.files.documents,
            "tokens": subject.files.tokens,
            "vocab_size": subject.files.vocab_size,
            "sources": subject.files.manifest.get("sources", []),
        },
    )
    teacher, taught = None, {}
    if config.teacher is not None:
        files = load_teacher(config.teacher, subject.config)
        bf16 = config.precision == "bf16"
        teacher = Network(files.config, files.weights, device=device, bf16=bf16).freeze()
        taught = {"teacher": fingerprint(files.path)}
    identity = {
        "config": place.config_hash,
        "data": subject.files.sha256,
        "model": subject.model_hash,
        **taught,
    }
    trained = sum(weight.numel() for weight in network.parameters.values())
    say(f"{network.size:,} weights, {trained:,} of them trained, on {device} in {config.precision}")
    trainer = Trainer(
        config, subject, network, place, identity, teacher=teacher, quiet=quiet, on_step=on_step
    )
    state = trainer.run()
    if config.patience:
        trainer.load_best()
    if config.lora_rank:
        target = place.adapter
        sha256 = lora.write_adapter(target, network, config)
    else:
        target = place.model
        weights = {name: weight.detach().cpu().numpy() for name, weight in network.weights.items()}
        bos = subject.tokenizer.bos_id if subject.tokenizer is not None else None
        sha256 = write_model_folder(
            target, subject.config, weights, subject.tokenizer_files, ends=subject.ends, bos_id=bos
        )
    losses = [point["loss"] for point in trainer.curves.points if "loss" in point]
    validations = [point["validation"] for point in trainer.curves.points if "validation" in point]
    made = Trained(
        target,
        sha256,
        state.step,
        state.tokens,
        losses[-1] if losses else None,
        state.best if config.patience else validations[-1] if validations else None,
        round(state.seconds, 3),
    )
    place.write_json("result.json", {**vars(made), "folder": str(made.folder)})
    say(f"{target}: {state.step} steps, {state.tokens:,} tokens, SHA-256 {sha256}")
    return made
