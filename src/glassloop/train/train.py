"""`train` and `resume`: a training run from its config to a model in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig, need_torch
from glassloop.train.curves import Point
from glassloop.train.run_folder import RunFolder
from glassloop.train.token_files import TokenFiles
from glassloop.util.progress import ProgressBar


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
    on_weights: Callable[[Path], None] = lambda folder: None,
) -> Trained:
    """Trains a model as the config says, with everything that belongs to the run in a folder. `on_weights` is
    called with the folder of the model or adapter whenever that was written: right after the last step, and
    again if the last validation found other weights to be the best."""
    load_torch(quiet)
    from glassloop.train.machine import settled

    RunFolder(Path(folder)).create(settled(config))
    return resume(folder, quiet=quiet, on_step=on_step, on_weights=on_weights)


def resume(
    folder: str | Path,
    *,
    quiet: bool = False,
    on_step: Callable[[int], None] = lambda step: None,
    on_weights: Callable[[Path], None] = lambda folder: None,
) -> Trained:
    """Goes on with a run from its last checkpoint. The result has the same bits as without the stop."""
    place = RunFolder(Path(folder))
    config = place.read_config()
    if place.result is None:
        load_torch(quiet)
        from glassloop.train.machine import set_up

        with place.locked(), set_up(config):
            if place.result is None:
                with ProgressBar(config.steps, 0, quiet) as progress:
                    return _run(config, place, progress, on_step, on_weights)
    done = place.result
    assert done is not None
    target = place.adapter if config.lora_rank else place.model
    on_weights(target)
    return Trained(**{**done, "folder": target})


def load_torch(quiet: bool) -> None:
    """Loads torch, which takes some seconds, and says so."""
    need_torch()
    if "torch" not in sys.modules:
        with ProgressBar(1, 0, quiet) as progress:
            progress.say("loading torch")
            progress.now("loading torch")
            import torch  # noqa: F401


def _run(
    config: TrainConfig,
    place: RunFolder,
    progress: ProgressBar,
    on_step: Callable[[int], None],
    on_weights: Callable[[Path], None],
) -> Trained:
    from glassloop.model.fingerprint import fingerprint
    from glassloop.train import lora
    from glassloop.train.hf_layout import hf_config
    from glassloop.train.machine import choose_device, environment
    from glassloop.train.model_folder import write_model_folder
    from glassloop.train.network import Network
    from glassloop.train.subject import load_subject, load_teacher
    from glassloop.train.trainer import Trainer

    say = progress.say
    progress.now("reading the model and the data")
    device = choose_device(config)
    subject = load_subject(config, place.path, say)
    if not config.lora_rank:
        hf_config(subject.config)  # raises now, not after the training, if the model cannot be written
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
    place.write_json("data.json", _data_facts(subject.files))
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
        config, subject, network, place, identity, teacher=teacher, progress=progress, on_step=on_step
    )

    def write() -> str:
        """Writes the weights of the network as the result, and returns the SHA-256 of their file."""
        progress.now("writing the weights")
        if config.lora_rank:
            sha256 = lora.write_adapter(target, network, config)
        else:
            weights = {name: weight.detach().cpu().numpy() for name, weight in network.weights.items()}
            bos = subject.tokenizer.bos_id if subject.tokenizer is not None else None
            sha256 = write_model_folder(
                target, subject.config, weights, subject.tokenizer_files, ends=subject.ends, bos_id=bos
            )
        say(f"{target}: the weights are written")
        on_weights(target)
        return sha256

    target = place.adapter if config.lora_rank else place.model
    with trainer.interruptible():
        trainer.run()
        sha256 = write()  # before all that takes time and may be interrupted
        state = trainer.look_back()
        if config.patience and trainer.load_best():
            sha256 = write()
    points = trainer.curves.points
    validation = state.best if config.patience else _last(points, "validation")
    seconds = round(state.seconds, 3)
    result = Trained(target, sha256, state.step, state.tokens, _last(points, "loss"), validation, seconds)
    place.write_json("result.json", {**vars(result), "folder": str(result.folder)})
    say(f"{target}: {state.step} steps, {state.tokens:,} tokens, SHA-256 {sha256}")
    return result


def _data_facts(files: TokenFiles) -> dict[str, Any]:
    """Returns what a run records of its data."""
    return {
        "sha256": files.sha256,
        "documents": files.documents,
        "tokens": files.tokens,
        "vocab_size": files.vocab_size,
        "sources": files.manifest.get("sources", []),
    }


def _last(points: Sequence[Point], name: str) -> Any:
    """Returns the last value of a curve, or None if it has none."""
    return next((point[name] for point in reversed(points) if name in point), None)
