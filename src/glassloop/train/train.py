"""`train` and `resume`: a training run from its config to a model in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.train.config import TrainConfig, TrainError
from glassloop.train.run_folder import RunFolder

if TYPE_CHECKING:
    from glassloop.train.network import Network
    from glassloop.train.subject import Subject
    from glassloop.train.tokens import TokenFiles


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
    _need_torch()
    from glassloop.train.machine import choose_device, cores

    place = RunFolder(Path(folder))
    # What depends on the machine is decided once, so that resuming elsewhere does not change it.
    device = choose_device(config)
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "f32"
    settled = replace(config, device=device, precision=precision, threads=config.threads or cores())
    place.create(settled)
    return resume(folder, quiet=quiet, on_step=on_step)


def resume(
    folder: str | Path, *, quiet: bool = False, on_step: Callable[[int], None] = lambda step: None
) -> Trained:
    """Goes on with a run from its last checkpoint. The result has the same bits as without the stop."""
    _need_torch()
    place = RunFolder(Path(folder))
    config = place.read_config()
    from glassloop.train.machine import set_up

    with place.locked(), set_up(config):
        done = place.result
        if done is not None:
            return Trained(**{**done, "folder": Path(done["folder"])})
        return _run(config, place, quiet, on_step)


def _run(config: TrainConfig, place: RunFolder, quiet: bool, on_step: Callable[[int], None]) -> Trained:
    from glassloop.model.fingerprint import fingerprint
    from glassloop.train import lora
    from glassloop.train.machine import choose_device, environment
    from glassloop.train.network import Network
    from glassloop.train.progress import Progress
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
    place.write_json("data.json", _facts(subject.files))
    identity = {"config": place.config_hash, "data": subject.files.sha256, "model": subject.model_hash}
    teacher = None
    if config.teacher is not None:
        files = load_teacher(config.teacher, subject.config)
        teacher = Network(files.config, files.weights, device=device, bf16=config.precision == "bf16")
        teacher.freeze()
        identity["teacher"] = fingerprint(files.path)
    trained = sum(weight.numel() for weight in network.parameters.values())
    say(f"{network.size:,} weights, {trained:,} of them trained, on {device} in {config.precision}")
    trainer = Trainer(
        config, subject, network, place, identity, teacher=teacher, quiet=quiet, on_step=on_step
    )
    state = trainer.run()
    if config.patience:
        trainer.load_best()
    if config.lora_rank:
        target, sha256 = place.adapter, lora.write_adapter(place.adapter, network, config)
    else:
        target, sha256 = place.model, _write(place.model, subject, network)
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


def _write(folder: Path, subject: Subject, network: Network) -> str:
    """Writes the trained model and returns the SHA-256 of its weights."""
    from glassloop.train.export import write_model_folder

    weights = {name: weight.detach().cpu().numpy() for name, weight in network.weights.items()}
    bos = subject.tokenizer.bos_id if subject.tokenizer is not None else None
    return write_model_folder(
        folder, subject.config, weights, subject.tokenizer_files, ends=subject.ends, bos_id=bos
    )


def _facts(files: TokenFiles) -> dict[str, Any]:
    names = ("sha256", "documents", "tokens", "vocab_size")
    return {name: getattr(files, name) for name in names} | {"sources": files.manifest.get("sources", [])}


def _need_torch() -> None:
    if find_spec("torch") is None:
        raise TrainError("training needs torch: pip install 'glassloop[train]'")
