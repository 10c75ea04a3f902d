"""Trains a gated adapter that fills masked rows ("holes"), and writes it as one file in 8 bits.

The model's weights stay as they are, and the adapter acts on masked rows alone: the answers of the model do
not change by a bit. A step masks spans of texts, or blocks at their end (`masking.py`); which ones is a
function of the seed and the step, so a run that is resumed sees what it would have seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassloop.model.fingerprint import fingerprint
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.train import checkpoint as checkpoints
from glassloop.train.adapter_file import write_adapter_file
from glassloop.train.checkpoint import State
from glassloop.train.config import TrainConfig, TrainError
from glassloop.train.curves import Curves, step_facts, svg
from glassloop.train.machine import environment, set_up, settled
from glassloop.train.optimizer import learning_rate, set_arrays, to_arrays
from glassloop.train.prepare import prepare_tokens
from glassloop.train.research.hole_network import HoleNetwork
from glassloop.train.research.masking import Layout, blocks, holes
from glassloop.train.run_folder import RunFolder
from glassloop.train.token_files import TokenFiles, is_token_folder
from glassloop.util.check import check_count, check_number
from glassloop.util.files import write_text
from glassloop.util.progress import ProgressBar

FILE = "holes.safetensors"
_WIDTHS = (4, 8, 16, 32)  # of a block
_GIVEN = (0, 0, 0, 1 / 4, 1 / 2, 1)  # tokens of holes that are filled already, for each that is masked
_CHECKED = 8  # steps whose gradients are compared, so that both layouts are among them
_ROUNDING = 0.05  # the relative difference of gradients that bfloat16 explains
_AHEAD = 3  # batches that are made while the device computes


@dataclass(frozen=True)
class HolesConfig:
    """What training a gated adapter needs besides the settings of every run. Of those it uses model, data,
    length, steps, batch, the learning rate, AdamW's settings, LoRA's, checkpoint_every and the machine."""

    run: TrainConfig
    block_share: float = 0.3  # steps that mask blocks at the end of texts
    mix: tuple[float, ...] = ()  # how often each source of data is used; () by its tokens
    mask_token: int = 0  # what masked rows carry, before the vector of the adapter is added
    seconds: float = 0.0  # the learning rate falls so that the run ends within this time; 0: no limit

    def __post_init__(self) -> None:
        check_number("block_share", self.block_share, 0, 1, TrainError)
        if self.mix and len(self.mix) != len(self.run.data):
            count = len(self.run.data)
            raise TrainError.about("mix", f"has {len(self.mix)} numbers; one for each of {count} sources")
        check_count("mask_token", self.mask_token, 0, 1 << 31, error=TrainError)
        if any(not 0 <= share < 1e9 for share in self.mix) or (self.mix and not sum(self.mix)):
            raise TrainError.about("mix", f"is {self.mix}; numbers from 0, not all of them 0, are expected")
        check_number("seconds", self.seconds, 0, 1e9, TrainError)
        if self.run.model is None:
            raise TrainError.about("model", "is missing; the model to adapt is expected")
        if not self.run.lora_rank:
            raise TrainError.about("lora_rank", "is 0; the rank of the adapter is expected")
        if self.run.length < 96 or self.run.length % 96:
            raise TrainError.about("length", f"is {self.run.length}; a multiple of 96 is expected")
        if self.run.batch % 2:
            raise TrainError.about("batch", f"is {self.run.batch}; an even number is expected")


class Texts:
    """Windows of token files, drawn at random."""

    def __init__(self, sources: Sequence[TokenFiles], mix: Sequence[float]) -> None:
        self._sources = sources
        weights = np.array(mix or [files.tokens for files in sources], float)
        self._weights = weights / weights.sum()

    def draw(self, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """Returns windows of `length` tokens: [count, length]. Half of those that begin in the first `length`
        tokens of a document begin with it."""
        drawn = []
        for source in rng.choice(len(self._sources), count, p=self._weights):
            files = self._sources[source]
            start = int(rng.integers(files.tokens))
            document = int(np.searchsorted(files.ends, start, "right"))
            begin = int(files.ends[document - 1]) if document else 0
            if rng.random() < 0.5 and start - begin < length:
                start = begin
            drawn.append(_window(files, start, length))
        return np.stack(drawn)


def _window(files: TokenFiles, start: int, length: int) -> np.ndarray:
    """Returns `length` tokens of one shard, from `start` or, at the end of the shard, from before it."""
    ends = np.cumsum([len(shard.tokens) for shard in files.shards])
    shard = int(np.searchsorted(ends, start, "right"))
    tokens = files.shards[shard].tokens
    first = min(start - int(ends[shard]) + len(tokens), len(tokens) - length)
    if first < 0:
        raise TrainError(f"{files.folder}: has a shard of {len(tokens)} tokens; {length} are expected")
    return tokens[first : first + length].astype(np.int64)


def make_layout(config: HolesConfig, texts: Texts, step: int) -> Layout:
    """Returns the masked texts of a step. All have the same numbers of clean and masked rows."""
    run = config.run
    rng = np.random.default_rng([run.seed, step])
    masked = run.length // 4
    if rng.random() < config.block_share:
        # Two thirds of the rows are a text, and a third is the blocks beside it.
        length = run.length * 2 // 3 // 8 * 8
        inside = run.length - length
        width = int(rng.choice([width for width in _WIDTHS if width * 4 <= inside]))
        count = inside // width
        return blocks(texts.draw(run.batch, length, rng), width, count, count * width - masked, rng)
    shown_count = int(masked * float(rng.choice(_GIVEN)))
    return holes(texts.draw(run.batch // 2, run.length, rng), masked + shown_count, shown_count, rng)


@dataclass(frozen=True)
class TrainedHoles:
    """The result of a run."""

    file: Path
    sha256: str
    steps: int
    tokens: int  # rows that were computed
    masked: int  # of them masked, which the loss counts
    loss: float | None  # mean of the last steps
    seconds: float


def train_holes(
    config: HolesConfig,
    folder: str | Path,
    *,
    quiet: bool = False,
    on_step: Callable[[int], None] = lambda step: None,
) -> TrainedHoles:
    """Trains an adapter in a folder, or goes on with it from its last checkpoint."""
    place = RunFolder(Path(folder))
    config = replace(config, run=settled(config.run))
    place.path.mkdir(parents=True, exist_ok=True)
    write_text(place.path / "config.json", json.dumps(asdict(config), indent=1) + "\n")
    with place.locked(), set_up(config.run):
        return _Run(config, place, quiet, on_step).finish()


class _Run:
    def __init__(
        self, config: HolesConfig, place: RunFolder, quiet: bool, on_step: Callable[[int], None]
    ) -> None:
        run = config.run
        self.config, self.place, self.quiet, self._on_step = config, place, quiet, on_step
        assert run.model is not None
        files = ModelFiles(fetch(run.model))
        self.sources = _sources(run, place.path, files)
        self.texts = Texts(self.sources, config.mix)
        if max(source.vocab_size for source in self.sources) > files.config.vocab_size:
            raise TrainError(f"the data has more tokens than the model, {files.config.vocab_size}")
        if config.mask_token >= files.config.vocab_size:
            raise TrainError.about("mask_token", f"is {config.mask_token}, which is not a token of the model")
        self.model_hash = fingerprint(files.path)
        self.network = HoleNetwork(
            files.config,
            files.weights,
            rank=run.lora_rank,
            scale=run.lora_alpha / run.lora_rank,
            mask_token=config.mask_token,
            targets=run.lora_targets,
            seed=run.seed,
            device=run.device,
            dtype=torch.bfloat16 if run.precision == "bf16" else torch.float32,
            compile=run.compile,
        )
        self.optimizer = torch.optim.AdamW(
            [self.network.flat],
            lr=run.lr,
            betas=(run.beta1, run.beta2),
            weight_decay=run.weight_decay,
            fused=run.device == "cuda",
        )
        self.identity = {
            "config": json.dumps({**asdict(config), "seconds": 0}, sort_keys=True),
            "data": " ".join(source.sha256 for source in self.sources),
            "model": self.model_hash,
        }
        self.state = State(step=0, epoch=0, place=0, tokens=0, seconds=0.0)
        self._resume()
        if run.compile:
            self._check_compiled()

    def _check_compiled(self) -> None:
        """Compares the gradients of compiled layers with those of plain ones. If they differ by more than
        rounding, or cannot be compiled, the run goes on without."""
        say = ProgressBar(1, 0, self.quiet).say
        network = self.network
        gradients = []
        try:
            for plain in (False, True):
                for step in range(_CHECKED):
                    layout = make_layout(self.config, self.texts, step)
                    loss = network.loss(*layout.batch(network.mask_token, self.config.run.device))
                    gradients.append(torch.autograd.grad(loss, network.flat)[0])
                if not plain:
                    compiled = network.stop_compiling()
        except Exception as error:
            network.stop_compiling()
            say(f"the layers cannot be compiled ({type(error).__name__}: {error}); they run as they are")
            return
        ours, expected = torch.stack(gradients[:_CHECKED]), torch.stack(gradients[_CHECKED:])
        difference = float((ours - expected).norm() / expected.norm())
        if difference < _ROUNDING:
            network.use_compiled(compiled)
        used = "used" if difference < _ROUNDING else "not used"
        say(f"the gradients of compiled layers differ by {difference:.2%}: they are {used}")

    def finish(self) -> TrainedHoles:
        """Trains to the end and writes the adapter."""
        curves = Curves(self.place.curves, self.state.step)
        with ProgressBar(self.config.run.steps, self.state.step, self.quiet) as progress:
            self._train(curves, progress)
        self._save()
        picture = svg(curves.points)
        if picture:
            write_text(self.place.picture, picture)
        curves.close()
        return self._write(curves)

    def _train(self, curves: Curves, progress: ProgressBar) -> None:
        """Makes the steps that are left, as far as the time allows."""
        run, device = self.config.run, self.config.run.device
        began, before, waiting = time.monotonic(), self.state.seconds, []
        for step, layout in self._layouts():
            elapsed = before + time.monotonic() - began
            gone = elapsed / self.config.seconds if self.config.seconds else 0.0
            if gone >= 1:
                break
            # The place in the schedule: by steps or, if that is further, by time.
            rate = learning_rate(run, max(step, min(run.steps - 1, int(gone * run.steps))))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            loss = self.network.loss(*layout.batch(self.network.mask_token, device))
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_([self.network.flat], run.clip or torch.inf)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            waiting.append((step + 1, torch.stack([loss.detach(), norm]), rate, layout))
            self.state = replace(
                self.state,
                step=step + 1,
                place=self.state.place + layout.targets.size,
                tokens=self.state.tokens + layout.rows,
                seconds=elapsed,
            )
            # Reading a loss waits for the device, so each is read when the next steps are under way.
            while waiting and (len(waiting) > 2 or step + 1 == run.steps):
                self._note(curves, progress, *waiting.pop(0))
            if (step + 1) % run.checkpoint_every == 0:
                self._save()
                self._write(curves)
            self._on_step(step + 1)
        for entry in waiting:
            self._note(curves, progress, *entry)
        self.state = replace(self.state, seconds=before + time.monotonic() - began)

    def _note(
        self, curves: Curves, progress: ProgressBar, step: int, numbers: Any, rate: float, layout: Layout
    ) -> None:
        loss, norm = numbers.tolist()
        self.place.check_finite(step, loss, norm)
        kind = "holes" if layout.starts is None else "blocks"
        rows = {"sequences": len(layout.targets), "masked": layout.targets.shape[1]}
        curves.add(step=step, loss=loss, lr=rate, norm=norm, kind=kind, **rows)
        speed = self.state.tokens / max(self.state.seconds, 1e-9)
        progress.show(step, step_facts(step, self.config.run.steps, loss, speed))

    def _layouts(self) -> Iterator[tuple[int, Layout]]:
        """Yields the layouts of the steps to come, made on another thread while the device computes."""
        steps = range(self.state.step, self.config.run.steps)
        with ThreadPoolExecutor(1) as pool:
            layouts = [pool.submit(make_layout, self.config, self.texts, step) for step in steps[:_AHEAD]]
            for step in steps:
                layout = layouts.pop(0).result()
                if step + _AHEAD < steps.stop:
                    layouts.append(pool.submit(make_layout, self.config, self.texts, step + _AHEAD))
                yield step, layout

    def _write(self, curves: Curves) -> TrainedHoles:
        """Writes the present adapter."""
        run, state = self.config.run, self.state
        masked = state.place  # the rows that were masked: texts are drawn, so there is no place in the data
        losses = [point["loss"] for point in curves.points if "loss" in point]
        pairs, vector = self.network.matrices()
        file = self.place.path / FILE
        last = float(np.mean(losses[-50:])) if losses else None
        recipe = {
            "model": run.model,
            "model_sha256": self.model_hash,
            "data": [
                {"sha256": source.sha256, "tokens": source.tokens, "sources": source.manifest.get("sources")}
                for source in self.sources
            ],
            "settings": asdict(self.config),
            "environment": environment(run.device),
            "result": {
                "steps": state.step,
                "rows": state.tokens,
                "masked": masked,
                "loss": last,
                "seconds": state.seconds,
            },
        }
        sha256 = write_adapter_file(
            file,
            pairs,
            self.network.scale,
            name="holes",
            embedding=vector,
            mask_token=self.network.mask_token,
            metadata=recipe,
        )
        trained = TrainedHoles(file, sha256, state.step, state.tokens, masked, last, round(state.seconds, 3))
        self.place.write_json("result.json", {**vars(trained), "file": str(file)})
        return trained

    # ── checkpoints ────────────────────────────────────────────────────────────────────────────────────────

    def _save(self) -> None:
        arrays = to_arrays({"flat": self.network.flat}, self.optimizer)
        checkpoints.save_checkpoint(self.place.checkpoints, self.state, arrays, self.identity)
        checkpoints.drop_old_checkpoints(self.place.checkpoints, self.config.run.keep)

    def _resume(self) -> None:
        checkpoint, problems = checkpoints.newest_checkpoint(self.place.checkpoints, self.identity)
        for problem in problems:
            ProgressBar(1, 0).say(f"{problem}; an older one is used")
        if checkpoint is not None:
            self.state, arrays = checkpoint
            parameters, where = {"flat": self.network.flat}, self.place.checkpoints
            set_arrays(parameters, self.optimizer, arrays, self.state.step, where)


def _sources(run: TrainConfig, folder: Path, files: ModelFiles) -> list[TokenFiles]:
    """Returns the token files of each source of data; text is encoded first."""
    if not run.data:
        raise TrainError.about("data", "is missing; a text file, a JSONL file or a folder is expected")
    token_files = []
    for number, source in enumerate(run.data):
        if is_token_folder(Path(source)):
            token_files.append(TokenFiles(Path(source)))
            continue
        token_folder = folder / f"tokens-{number}"
        if not is_token_folder(token_folder):
            prepare_tokens([source], token_folder, files.tokenizer(), vocab_size=files.config.vocab_size)
        token_files.append(TokenFiles(token_folder))
    return token_files
