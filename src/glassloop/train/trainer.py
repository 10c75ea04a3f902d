"""The training loop: take a batch, compute its gradients, step, and now and then validate, sample and save.

Everything a step does is a function of the config, the data and the checkpoint before it: data come in a
hashed order, dropout is seeded for each step, and kernels are deterministic. So a run that was killed and
resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassloop.train import checkpoint as checkpoints
from glassloop.train.batches import (
    DROPOUT,
    IGNORED,
    ON_POLICY,
    Batches,
    Cursor,
    TrainingRows,
    document_cuts,
    number,
)
from glassloop.train.checkpoint import Arrays, State
from glassloop.train.config import TrainConfig, TrainingInterrupted, plan_text
from glassloop.train.curves import Curves, step_facts, svg
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.machine import send
from glassloop.train.network import Network
from glassloop.train.optimizer import LaunchedStep, adamw, learning_rate, set_arrays, to_arrays
from glassloop.train.probes import end_probability, neighbours
from glassloop.train.run_folder import RunFolder
from glassloop.train.sample_text import after_end, sample_batch, sample_tokens
from glassloop.train.subject import Subject
from glassloop.util.progress import ProgressBar, duration

_TIMED = 32  # tokens of the piece whose time foretells that of a step
_FIRST = State(step=0, epoch=0, place=0, tokens=0, seconds=0.0)


class Trainer:
    """One run from its last checkpoint, or its beginning, to its end."""

    def __init__(
        self,
        config: TrainConfig,
        subject: Subject,
        network: Network,
        folder: RunFolder,
        identity: dict[str, str],
        *,
        teacher: Network | None = None,
        progress: ProgressBar,
        on_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.config = config
        self.subject = subject
        self.network = network
        self.folder = folder
        self.identity = identity
        self.state = _FIRST
        self._on_step = on_step
        self._stop = False
        self._launched: deque[LaunchedStep] = deque()
        # Steps whose results are not waited for: while a GPU computes, the next step is prepared.
        self._ahead = 1 if network.device.startswith("cuda") else 0
        self._broken = torch.zeros((), device=network.device)  # 1 after a step that was not finite
        self._clock = time.monotonic()
        options = config.length, config.packing, config.seed, config.borders
        self._batches = Batches(subject.files, subject.training, *options)  # type: ignore[arg-type]
        self._cuts = network.takes_cuts
        self._prompt = self._sample_prompt()
        self._probed = self._probed_tokens()
        self.optimizer = adamw(config, network)
        self._teacher = teacher
        self._resume()
        self.curves = Curves(folder.curves, self.state.step)
        self.progress = progress

    def run(self) -> State:
        """Makes all steps and saves a checkpoint. Raises a TrainError if the loss is not finite; the last
        checkpoint stays."""
        config, progress = self.config, self.progress
        if self.state.step:
            progress.say(f"going on after step {self.state.step}")
        elif not self.curves.points:
            progress.now("saving the first weights")
            self._save()
            progress.now("measuring the model before the first step")
            self._probe()
        if self.state.step < config.steps:
            self._say_plan()
        progress.begin(self.state.step)
        self._clock = time.monotonic()
        first = self.state.step
        while not self._is_over:
            progress.now(f"step {self.state.step + 1}/{config.steps}", soon=self.state.step == first)
            self.step()
            done = self.state.step
            if done < config.steps:  # after the last step the weights are saved first
                if config.sample_every and done % config.sample_every == 0:
                    self._sample()
                if config.validate_every and done % config.validate_every == 0:
                    self._validate()
            stopped = self._stop  # read once: a run that ends here has a checkpoint of this step
            if done % config.checkpoint_every == 0 or stopped or self._is_over:
                self._save()
            self._on_step(done)
            if stopped and done < config.steps:
                raise TrainingInterrupted(done, f"go on: glassloop train resume {self.folder.path}")
        return self.state

    def look_back(self) -> State:
        """Validates and samples after the last step, unless Ctrl-C was pressed since; returns the state with
        the validation."""
        here = {key for point in self.curves.points if point["step"] == self.state.step for key in point}
        if "validation" not in here and self.subject.validation:
            self._validate(may_stop=True)
            if self.config.patience:  # which weights are the best is a part of the state
                self._save()
        if "sample" not in here:
            self._sample()
        self.curves.close()
        return self.state

    def _say_plan(self) -> None:
        """Says what a step reads, and how long the run will take."""
        config, progress = self.config, self.progress
        steps = config.steps - self.state.step
        data = sum(stop - start for start, stop in self.subject.training)
        progress.say(plan_text(config, steps, data))
        if progress.quiet or self._ahead or config.compile or config.on_policy:
            return  # a GPU is soon through with its first steps; compiling would be timed too
        progress.now("timing a short piece")
        seconds = self._time_step()
        progress.say(f"about {seconds:.2g} s a step here, {duration(seconds * steps)} in all")

    def _time_step(self) -> float:
        """Returns how long a step will take, in seconds, by the time of a short piece of a sequence."""
        rows, _ = self._batches.take(Cursor(self.state.epoch, self.state.place), 1)
        rows = rows.part(0, 1, _TIMED)
        took: list[float] = []
        while not took or (len(took) < 3 and sum(took) < 1):  # the first one also allocates memory
            began = time.monotonic()
            with self.network.training():
                self._loss(*self._packed(rows), False).backward()
            took.append(time.monotonic() - began)
        self.optimizer.zero_grad(set_to_none=True)
        return min(took) * self.config.tokens_per_step / rows.tokens.size

    @property
    def _is_over(self) -> bool:
        """Whether all steps are made, or validation has not improved for as long as the config allows."""
        return self.state.step >= self.config.steps or 0 < self.config.patience <= self.state.worse

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """Launches a step, and records the one before it, or itself on a CPU."""
        config, state = self.config, self.state
        rows, cursor = self._batches.take(Cursor(state.epoch, state.place), config.batch * config.accumulate)
        own_text = number(config.seed, state.step, ON_POLICY, 1 << 32) < config.on_policy * (1 << 32)
        if own_text:
            rows = self._write_rows(rows)
        count = rows.count
        torch.manual_seed(number(config.seed, state.step, DROPOUT, 2**63))
        rate = learning_rate(config, state.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        losses: list[torch.Tensor] = []
        with self.network.training():
            for at in range(0, len(rows.tokens), config.batch):
                batch, targets = self._packed(rows.part(at, at + config.batch))
                loss = self._loss(batch, targets, own_text) / max(1, count)
                loss.backward()
                losses.append(loss.detach())
        parameters = list(self.network.parameters.values())
        clipped = torch.nn.utils.clip_grad_norm_(parameters, config.clip or math.inf)
        facts = torch.stack([torch.stack(losses).sum(), clipped])
        # The optimizer skips the step, and all that follow, on the device: the weights stay finite.
        self._broken = torch.maximum(self._broken, (~facts.isfinite()).any().to(self._broken.dtype))
        self.optimizer.found_inf = self._broken
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state = replace(
            state,
            step=state.step + 1,
            epoch=cursor.epoch,
            place=cursor.place,
            tokens=state.tokens + count,
        )
        self._launched.append(LaunchedStep(self.state.step, rate, self.state.tokens, rows.tokens.size, facts))
        while len(self._launched) > self._ahead:
            self._record()

    def finish(self) -> None:
        """Waits for all steps that were launched."""
        while self._launched:
            self._record()

    def _record(self) -> None:
        """Waits for the oldest step that was launched and records it. Raises a TrainError if it was not
        finite."""
        done = self._launched.popleft()
        total, norm = done.read()
        self.folder.check_finite(done.step, total, norm)
        now = time.monotonic()
        took, self._clock = now - self._clock, now
        self.state = replace(self.state, seconds=self.state.seconds + took)
        self.curves.add(
            step=done.step,
            loss=total,
            lr=done.rate,
            norm=norm,
            tokens=done.tokens,
            seconds=round(self.state.seconds, 3),
        )
        speed = done.rows / max(took, 1e-9)
        self.progress.show(done.step, step_facts(done.step, self.config.steps, total, speed))

    def _loss(self, batch: SequenceBatch, targets: torch.Tensor, own_text: bool) -> torch.Tensor:
        if self._teacher is None:
            return self.network.loss(batch, targets)
        # Text of the student's own is no example: only the teacher says what should come next.
        share = 1.0 if own_text else self.config.teacher_share
        return self.network.distillation(batch, targets, self._teacher, share)

    def _write_rows(self, rows: TrainingRows) -> TrainingRows:
        """Returns sequences that the model writes itself after the first tokens of those of the data. What
        comes after the end of a text is not learned."""
        prompt, length = self.config.on_policy_prompt, rows.tokens.shape[1]
        seed = number(self.config.seed, self.state.step, ON_POLICY, 2**63)
        begins = torch.from_numpy(rows.tokens[:, :prompt].copy())
        ids = sample_batch(self.network, begins, length - prompt, seed)
        targets = torch.full_like(ids, IGNORED)
        targets[:, :-1] = ids[:, 1:].masked_fill(after_end(ids, self.subject.ends)[:, 1:], IGNORED)
        targets[:, : prompt - 1] = IGNORED
        positions = np.broadcast_to(np.arange(length), rows.tokens.shape)
        return TrainingRows(ids.cpu().numpy(), targets.cpu().numpy(), positions, None)

    def _packed(self, rows: TrainingRows) -> tuple[SequenceBatch, torch.Tensor]:
        """Returns a batch and its targets on the device. If the loss counts less than half of the rows, only
        their logits are computed."""
        sent = partial(send, device=self.network.device)
        targets, wanted = rows.targets.reshape(-1), None
        if rows.count * 2 < targets.size:
            places = np.flatnonzero(targets != IGNORED)
            targets, wanted = targets[places], sent(places)
        return SequenceBatch(
            sent(rows.tokens.reshape(-1)),
            sent(rows.positions.reshape(-1)),
            len(rows.tokens),
            rows.tokens.shape[1],
            documents=None if rows.documents is None else sent(rows.documents),
            wanted=wanted,
            look_ahead=self.config.look_ahead,
            cuts=sent(document_cuts(rows.documents)) if self._cuts and rows.documents is not None else None,
        ), sent(targets)

    # ── on the way ─────────────────────────────────────────────────────────────────────────────────────────

    def validation_loss(self, may_stop: bool = False) -> float | None:
        """Returns the mean cross-entropy of the validation data in nats per token; None if there is none, or
        if it may stop and Ctrl-C was pressed."""
        config, subject = self.config, self.subject
        if not subject.validation:
            return None
        options = config.length, config.packing, None, config.borders
        batches = Batches(subject.validation_files, subject.validation, *options)  # type: ignore[arg-type]
        most = min(len(batches.epoch(0)), -(-config.validation_tokens // config.length))
        total, count = 0.0, 0
        with torch.no_grad():
            for at in range(0, most, config.batch):
                if may_stop and self._stop:
                    return None
                rows, _ = batches.take(Cursor(0, at), min(config.batch, most - at))
                total += float(self.network.loss(*self._packed(rows)))
                count += rows.count
        return total / max(1, count)

    def _validate(self, may_stop: bool = False) -> None:
        self.finish()
        self.progress.now("validating")
        loss = self.validation_loss(may_stop)
        if loss is None:
            if self.subject.validation:
                self.progress.say("validation skipped")
            return
        better = self.state.best is None or loss < self.state.best
        self.state = replace(
            self.state,
            best=loss if better else self.state.best,
            worse=0 if better else self.state.worse + 1,
        )
        if better and self.config.patience:
            self._save_best()
        self.curves.add(step=self.state.step, validation=loss)
        self._probe()
        self.progress.say(f"step {self.state.step}: validation loss {loss:.4f}")
        self._draw()

    def _probed_tokens(self) -> dict[str, int]:
        """Returns the first token of each word whose neighbours are recorded."""
        tokenizer = self.subject.tokenizer
        if tokenizer is None or not self.config.probe:
            return {}
        ids_of = {word: tokenizer.encode(word, add_special=False) for word in self.config.probe}
        return {word: ids[0] for word, ids in ids_of.items() if ids}

    def _probe(self) -> None:
        """Records what the model knows of words and of the ends of texts."""
        subject, tokenizer = self.subject, self.subject.tokenizer
        files, ranges = subject.validation_files, subject.validation or subject.training
        ends = end_probability(self.network, files, ranges, subject.ends, self.config.length)
        if ends is not None:
            self.curves.add(step=self.state.step, end_probability=list(ends))
        if tokenizer is not None and self._probed:
            close = {
                word: [tokenizer.piece(token) for token, _ in neighbours(self.network, token_id)]
                for word, token_id in self._probed.items()
            }
            self.curves.add(step=self.state.step, neighbours=close)

    def _sample_prompt(self) -> list[int]:
        tokenizer = self.subject.tokenizer
        if tokenizer is not None and self.config.sample_prompt:
            return tokenizer.encode(self.config.sample_prompt)
        first: list[int] = self.subject.files.read(0, 1)[0].tolist()
        return first

    def _sample(self) -> None:
        self.finish()
        config, tokenizer = self.config, self.subject.tokenizer
        if tokenizer is None:
            return
        if not self._stop:
            self.progress.say(f"sampling {config.sample_tokens} tokens (Ctrl-C skips them)")
        self.progress.now("sampling")
        options = config.sample_tokens, config.sample_temperature, config.seed, tokenizer.eos_ids
        ids = sample_tokens(self.network, self._prompt, *options, stopped=lambda: self._stop)
        if self._stop:
            self.progress.say("sample skipped")
            return
        text = tokenizer.decode(ids, skip_special=True)
        self.curves.add(step=self.state.step, sample=text)
        self.progress.say(f"── step {self.state.step} ──\n{text}\n──")

    def _draw(self) -> None:
        picture = svg(self.curves.points)
        if picture:
            self.folder.picture.write_text(picture, encoding="utf-8")

    # ── checkpoints ────────────────────────────────────────────────────────────────────────────────────────

    def _save(self) -> None:
        self.finish()
        self._write_checkpoint(self.folder.checkpoints)
        checkpoints.drop_old_checkpoints(self.folder.checkpoints, self.config.keep)

    def _write_checkpoint(self, folder: Path) -> Path:
        arrays = to_arrays(self.network.parameters, self.optimizer)
        return checkpoints.save_checkpoint(folder, self.state, arrays, self.identity)

    def _save_best(self) -> None:
        path = self._write_checkpoint(self.folder.path / "best.part")
        self.folder.checkpoints.mkdir(exist_ok=True)
        path.replace(self.folder.best)
        path.parent.rmdir()

    def load_best(self) -> bool:
        """Takes the weights of the best validation, if the run keeps them; returns whether it does."""
        if not self.folder.best.exists():
            return False
        _, arrays = checkpoints.read_checkpoint(self.folder.best, self.identity)
        self._set(arrays)
        return True

    def _resume(self) -> None:
        checkpoint, problems = checkpoints.newest_checkpoint(self.folder.checkpoints, self.identity)
        for problem in problems:
            ProgressBar(1, 0).say(f"{problem}; an older one is used")
        if checkpoint is not None:
            self.state, arrays = checkpoint
            self._set(arrays)

    def _set(self, arrays: Arrays) -> None:
        parameters, where = self.network.parameters, self.folder.checkpoints
        set_arrays(parameters, self.optimizer, arrays, self.state.step, where)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets Ctrl-C end the run after the current step, with a checkpoint, and skip what is left after the
        last one. A second one ends it at once."""

        def stop(*_: object) -> None:
            self._stop = True
            signal.signal(signal.SIGINT, before)

        try:
            before: Any = signal.signal(signal.SIGINT, stop)
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
