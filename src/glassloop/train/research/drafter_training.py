"""Trains a drafter (`model/drafter.py`) for a model, on text that the model has written.

The model is frozen; one pass over a batch gives its features and its own next-token distributions. The
drafter learns these distributions, not the tokens: with the run's own luck a draft is right where the two
agree. It is trained as it is used ("training-time test", EAGLE-3): in later steps of a chain its own state
stands in for that of the model. Towards the end its matrices are rounded as they will be stored, so that the
weights adapt to it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from glassloop.model.config import ModelConfig
from glassloop.model.drafter import ARCHITECTURE, Drafter, DrafterConfig, model_key
from glassloop.ops.protocol import Array
from glassloop.ops.quant import FORMATS, Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.batches import BLOCKS, DOCUMENTS, order
from glassloop.train.config import TrainError
from glassloop.train.cross_entropy import soft_cross_entropy
from glassloop.train.gguf_file import write_tensors
from glassloop.train.gradient_ops import SequenceBatch, TrainMatrix, TrainOps, as_ops, tensor_of, weight_of
from glassloop.train.machine import send
from glassloop.train.network import Network
from glassloop.train.token_files import TokenFiles
from glassloop.util.files import sha256_of

_FORMAT = FORMATS["Q4_1"]
_STEP_WEIGHTS = 0.8  # of a step's loss, relative to the step before it
_MOST_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}  # of a kind that exist at a time
_NEIGHBOURS = 4096  # documents that are sorted by length, so that those of one batch need little padding
_KEPT_ROWS = 32_768  # whose features are computed at a time
_KEPT_SHARE = 0.8  # of the free memory of a GPU that kept features may take


@dataclass(frozen=True)
class DrafterTraining:
    """The settings of a training."""

    features: tuple[int, ...] = ()  # layers whose output is read; (): after 1/4, 3/5 and all of the layers
    vocab_size: int = 8192
    ffn_dim: int = 0  # 0: that of the model
    steps: int = 12_000
    seconds: float = math.inf  # the learning rate falls to 0 by then, if the steps are not done earlier
    batch: int = 8192  # rows of a batch, padding included
    chain: int = 3  # steps of a chain
    learning_rate: float = 1e-3
    warm_up: int = 200  # steps
    rounded: float = 0.7  # the share of the training after which the matrices are rounded
    length: int = 768  # tokens of a document that are used
    held_out: int = 64  # documents that are only evaluated
    seed: int = 0


class _RoundedOps(TrainOps):
    """The op set for training, with matrices rounded to the stored format if `rounded` is set."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.rounded = False
        self._made: dict[int, torch.Tensor] = {}  # rounded matrices of one loss, by the id of the matrix

    def linear(self, x: torch.Tensor, weight: TrainMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, self.used(weight), bias)

    def used(self, weight: TrainMatrix) -> torch.Tensor:
        """Returns the values that a matrix has in products."""
        if not self.rounded:
            return weight.weight
        if id(weight) not in self._made:
            self._made[id(weight)] = _rounded(weight.weight)
        return self._made[id(weight)]

    def forget(self) -> None:
        """Rounds the matrices again at their next use: they may have changed."""
        self._made.clear()


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    """Returns the values that Q4_1 stores for a matrix; gradients pass as if it were not rounded."""
    with torch.no_grad():
        blocks = weight.float().reshape(-1, _FORMAT.block_values)
        low = blocks.amin(-1, keepdim=True)
        scale = (blocks.amax(-1, keepdim=True) - low) / 15
        codes = ((blocks - low) / scale.clamp_min(1e-12) + 0.5).floor_().clamp_(0, 15)
        stored = (codes * scale.half().float() + low.half().float()).reshape(weight.shape)
        moved = stored.to(weight.dtype) - weight
    return weight + moved


class Target(Network):
    """The frozen model: features and logits of documents."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], device: str, bf16: bool) -> None:
        super().__init__(config, weights, device=device, bf16=bf16)
        self.freeze()

    def features(
        self, batch: SequenceBatch, layers: Sequence[int]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Returns the residual stream after these numbers of layers, and what the language head reads,
        without gradients."""
        outputs: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for number, x in enumerate(self.transformer.residuals(batch, (), as_ops(self.ops))):  # type: ignore[arg-type]
                last = x
                if number in layers:
                    outputs[number] = tensor_of(x)
            hidden = self.transformer.final_hidden(last, batch)  # type: ignore[arg-type]
        return [outputs[layer] for layer in layers], tensor_of(hidden)

    def head(self) -> torch.Tensor:
        return weight_of(self.transformer.head)


@dataclass
class Documents:
    """A batch of documents, padded to one length."""

    packed: SequenceBatch
    tokens: torch.Tensor  # [documents, length]
    places: torch.Tensor  # [rows] where each token is in the text; -1 for padding
    # [documents, length] whether the token is part of an answer. On the host: rows are counted and chosen
    # without waiting for the device.
    learned: NDArray[np.bool_]

    def counted(self, number: int) -> NDArray[np.bool_]:
        """Returns at which rows a chain begins whose step `number` counts, [documents, length]: the token
        that its first step takes and the one that this step drafts are parts of an answer."""
        return _later(self.learned, 1) & _later(self.learned, number + 2)

    def rows(self, number: int) -> torch.Tensor:
        """Returns the numbers of these rows, on the device."""
        return send(np.flatnonzero(self.counted(number)), str(self.tokens.device))

    def aligned(self, chain: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the rows of the model whose distribution some step of a chain drafts, [rows]; where the
        chains begin that draft it, [chain, rows]; and the factors of their losses, [chain, rows]: 0 where a
        step does not count, and else such that the result is the weighted mean over the steps of the means
        over their rows."""
        weights = _STEP_WEIGHTS ** np.arange(chain)
        factors = np.zeros((chain, self.learned.size), np.float32)
        for number in range(chain):
            begins = np.flatnonzero(self.counted(number))
            factors[number, begins + number + 1] = weights[number] / weights.sum() / max(1, len(begins))
        rows = np.flatnonzero(factors.any(0))
        begins = np.maximum(0, rows - 1 - np.arange(chain)[:, None])
        device = str(self.tokens.device)
        return send(rows, device), send(begins, device), send(factors[:, rows], device)


class DrafterTrainer:
    def __init__(
        self,
        target: Target,
        text: TokenFiles,
        training: DrafterTraining,
        report: Callable[[str], None] = print,
    ) -> None:
        self.target = target
        self.training = training
        self.text = text
        self._report = report
        config = target.config
        layers = len(config.layers)
        features = training.features or tuple(sorted({round(layers / 4), round(3 * layers / 5), layers}))
        size = min(training.vocab_size, config.vocab_size)
        self.config = DrafterConfig(features, size, training.ffn_dim or config.ffn_dim)
        try:
            self.config.check(config)
        except ValueError as wrong:
            raise TrainError(f"the drafter does not fit the model: {wrong}") from None
        held = min(training.held_out, text.documents // 10)
        shuffled = order(training.seed, 0, DOCUMENTS, text.documents)
        self.held_out, self._training = shuffled[:held], shuffled[held:]
        if not len(self._training):
            raise TrainError("the text has no documents to train on")
        self.tokens = self._frequent_tokens(size)
        self._ids = torch.from_numpy(self.tokens.astype(np.int64)).to(target.device)
        self.ops = _RoundedOps(target.device)
        self.drafter = Drafter(self.config, config, self._first_weights(), as_ops(self.ops))
        self.parameters = {name: held.weight for name, held in self.ops.matrices.items()} | self.ops.vectors
        self._kept: torch.Tensor | None = None  # [tokens of the text, layers of _kept_layers, dim]

    def _frequent_tokens(self, size: int) -> NDArray[np.int32]:
        """Returns the tokens that the text has most often, in rising order."""
        counts = np.zeros(self.target.config.vocab_size, np.int64)
        for shard in self.text.shards:
            counts += np.bincount(shard.tokens, minlength=len(counts))
        return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)

    def _first_weights(self) -> dict[str, Tensor]:
        """Returns the weights that the training begins with: the head is that of the model, and the state is
        what the last layer leaves."""
        generator = torch.Generator().manual_seed(self.training.seed)
        weights: dict[str, Tensor] = {}
        last, final = len(self.config.features) - 1, self.target.transformer.final_norm
        for name, shape in self.config.shapes(self.target.config).items():
            if name == "head_norm" and final is not None:
                values = tensor_of(final.weight).float().cpu()
            elif len(shape) == 1:
                values = torch.ones(shape)
            elif name == "head.weight":
                values = self.target.head()[self._ids].float().cpu()
            elif name == f"feature.{last}.weight":
                values = torch.eye(shape[0])
            else:
                spread = 0.02 / 5 if name in ("o.weight", "down.weight") else 0.02
                values = torch.randn(shape, generator=generator) * spread
            weights[name] = Tensor.of(name, values.numpy())
        return weights

    # ── batches ────────────────────────────────────────────────────────────────────────────────────────────

    def batches(self, epoch: int, rows: int = 0) -> Iterator[Documents]:
        """Yields the batches of an epoch, of `rows` rows if that is given; their order is a pure function of
        the seed and the epoch."""
        training, most = self.training, rows or self.training.batch
        documents = self._training[order(training.seed, epoch, DOCUMENTS, len(self._training))]
        starts = np.concatenate([[0], self.text.ends[:-1]])
        sizes = np.minimum(self.text.ends - starts, training.length)
        groups: list[NDArray[np.int64]] = []
        for at in range(0, len(documents), _NEIGHBOURS):
            some = documents[at : at + _NEIGHBOURS]
            some = some[np.argsort(sizes[some], kind="stable")]
            begin = 0
            while begin < len(some):
                end = begin + 1
                while end < len(some) and (end + 1 - begin) * sizes[some[end]] <= most:
                    end += 1
                groups.append(some[begin:end])
                begin = end
        for number in order(training.seed, epoch, BLOCKS, len(groups)).tolist():
            yield self.documents(groups[number])

    def documents(self, numbers: Sequence[int] | NDArray[Any]) -> Documents:
        """Returns these documents as one batch."""
        read, starts = [], []
        for number in numbers:
            end = int(self.text.ends[number])
            starts.append(int(self.text.ends[number - 1]) if number else 0)
            read.append(self.text.read(starts[-1], min(end, starts[-1] + self.training.length)))
        return pad(read, self.target.device, starts)

    # ── the model's part ───────────────────────────────────────────────────────────────────────────────────

    @property
    def _kept_layers(self) -> tuple[int, ...]:
        """The numbers of layers after which the residual stream is kept: the features, and the last one."""
        return tuple(sorted({*self.config.features, len(self.target.config.layers)}))

    def features_fit(self) -> bool:
        """Returns whether the features of the whole text fit into the memory of the GPU."""
        if not self.target.device.startswith("cuda"):
            return False
        each = len(self._kept_layers) * self.target.config.dim * torch.bfloat16.itemsize
        free, _ = torch.cuda.mem_get_info()
        return bool(self.text.tokens * each < _KEPT_SHARE * free)

    def keep_features(self) -> None:
        """Computes the features of the whole text once, in bfloat16, so that epochs need not compute the
        model again."""
        layers = self._kept_layers
        shape = self.text.tokens, len(layers), self.target.config.dim
        kept = torch.empty(shape, dtype=torch.bfloat16, device=self.target.device)
        for batch in _ahead(self.batches(0, _KEPT_ROWS)):
            with self.target.precision():
                features, _ = self.target.features(batch.packed, layers)
            real = batch.places >= 0
            kept[batch.places[real]] = torch.stack(features, 1)[real].to(kept.dtype)
        self._kept = kept

    def _features(self, batch: Documents) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Returns the features of a batch and what the language head reads: those that are kept, if any."""
        if self._kept is None:
            return self.target.features(batch.packed, self.config.features)
        kept = self._kept[batch.places.clamp_min(0)].float()
        columns = [self._kept_layers.index(layer) for layer in self.config.features]
        with torch.no_grad():
            hidden = self.target.transformer.final_hidden(kept[:, -1], batch.packed)  # type: ignore[arg-type]
        return [kept[:, column] for column in columns], hidden

    # ── training ───────────────────────────────────────────────────────────────────────────────────────────

    def train(self) -> dict[str, Any]:
        """Trains until the steps are done or the time is up; returns what was reached."""
        training = self.training
        parameters = list(self.parameters.values())
        optimizer = torch.optim.AdamW(
            parameters,
            lr=training.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=self.target.device.startswith("cuda"),
        )
        began = said = perf_counter()
        step, rows, epoch, average = 0, 0, 0, 0.0
        progress = 0.0
        while progress < 1:
            for batch in _ahead(self.batches(epoch)):
                rate = training.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
                for group in optimizer.param_groups:
                    group["lr"] = rate * min(1.0, (step + 1) / training.warm_up)
                self.ops.rounded = progress >= training.rounded
                loss = self.loss(batch)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                step, rows = step + 1, rows + batch.tokens.numel()
                now = perf_counter()
                progress = max(step / training.steps, (now - began) / training.seconds)
                if step == 1 or now - said > 10:
                    said, average = now, float(loss.detach())
                    self._report(
                        f"step {step}, epoch {epoch}, loss {average:.4f},"
                        f" {rows / (now - began):,.0f} rows a second, {progress:.0%}"
                    )
                    if not math.isfinite(average):
                        raise TrainError(f"the loss is {average} at step {step}")
                if progress >= 1:
                    break
            epoch += 1
        self.ops.rounded = True
        return {
            "steps": step,
            "epochs": epoch,
            "rows": rows,
            "seconds": round(perf_counter() - began, 1),
            "loss": round(float(loss.detach()), 4),
        }

    def loss(self, batch: Documents) -> torch.Tensor:
        """Returns the mean cross-entropy of the steps of a chain from every row, with respect to the model's
        own distribution over the drafted tokens."""
        self.ops.forget()
        rows, begins, factors = batch.aligned(self.training.chain)
        with self.target.precision():
            features, hidden = self._features(batch)
            states = self.chain(batch, features)
            drafter_logits = [
                self.drafter.hidden(state.index_select(0, each))
                for state, each in zip(states, begins, strict=True)
            ]
            head = self.ops.used(self.ops.matrices["head.weight"])
        return soft_cross_entropy(
            drafter_logits,
            head,
            factors,
            hidden.index_select(0, rows),
            self.target.head()[self._ids],
            dtype=torch.bfloat16 if self.target.bf16 else head.dtype,
            most_logits=_MOST_LOGITS[self.target.device.split(":")[0]],
        )

    def chain(self, batch: Documents, features: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yields for each step of a chain the states of all rows after it. A chain that begins at row t takes
        the token t + 1 in its first step, and draws what the model draws at row t + 1."""
        ops, packed, transformer = as_ops(self.ops), batch.packed, self.target.transformer
        mixer = self.drafter.mixer
        angles = None
        if mixer.rope is not None:
            frequencies = transformer.frequencies[mixer.rope]
            angles = ops.angles(packed.positions, frequencies, mixer.rope.sharpness)
        state = self.drafter.state(cast(Sequence[Array], features))
        k, v = self.drafter.keys_and_values(state, angles)

        def attend(q: Array) -> Array:
            return ops.attention(q, k, v, packed, (), (0, 0), mixer.scale, None, mixer.softcap)  # type: ignore[arg-type]

        for number in range(self.training.chain):
            shifted = _shifted(batch.tokens, number + 1)
            embedded = ops.embed(transformer.token_embedding, shifted.reshape(-1))
            if transformer.config.embedding_scale != 1.0:
                embedded = ops.scale(embedded, transformer.config.embedding_scale)
            state = self.drafter.step(state, embedded, angles, attend)
            yield tensor_of(state)

    # ── evaluation ─────────────────────────────────────────────────────────────────────────────────────────

    def acceptance(self, batches: Sequence[Documents], temperature: float) -> list[float]:
        """Returns for each step of a chain the share of drafts that are right, if those before them were:
        equal to the model's choice over its whole vocabulary with the same luck."""
        self.ops.forget()
        right, count = [0] * self.training.chain, [0] * self.training.chain
        generator = torch.Generator(self.target.device).manual_seed(self.training.seed)
        for batch in batches:
            with torch.no_grad(), self.target.precision():
                features, hidden = self.target.features(batch.packed, self.config.features)
                for number, state in enumerate(self.chain(batch, features)):
                    for some in batch.rows(number).split(4096):
                        target_logits = self.target._logits(hidden[some + number + 1]).float()
                        drafter_logits = tensor_of(self.drafter.logits(cast(Array, state[some]))).float()
                        if temperature > 0:
                            luck = -torch.empty_like(target_logits).exponential_(generator=generator).log()
                            target_logits = target_logits / temperature + luck
                            drafter_logits = drafter_logits / temperature + luck[:, self._ids]
                        same = self._ids[drafter_logits.argmax(-1)] == target_logits.argmax(-1)
                        right[number] += int(same.sum())
                        count[number] += len(some)
        return [good / max(1, all) for good, all in zip(right, count, strict=True)]

    def held_out_batches(self) -> list[Documents]:
        return [self.documents(self.held_out[at : at + 16]) for at in range(0, len(self.held_out), 16)]

    # ── the file ───────────────────────────────────────────────────────────────────────────────────────────

    def export(self, path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Writes the drafter as GGUF and its recipe as JSON beside it; returns the recipe. `weights` are
        those of the model, which the file is named after in the package."""
        arrays: dict[str, Float32] = {
            name: value.detach().float().cpu().numpy() for name, value in self.parameters.items()
        }
        tensors = []
        for name, shape in self.config.shapes(self.target.config).items():
            tensor = Tensor.of(name, arrays[name])
            fits = len(shape) == 2 and shape[1] % _FORMAT.block_values == 0
            tensors.append(tensor.stored_as(_FORMAT) if fits else tensor)
        metadata = {
            "general.architecture": ARCHITECTURE,
            "drafter.features": np.array(self.config.features, np.int32),
            "drafter.ffn_dim": self.config.ffn_dim,
            "drafter.tokens": self.tokens,
        }
        write_tensors(path, metadata, tensors)
        training = {name: value for name, value in asdict(self.training).items() if value != math.inf}
        recipe = {
            "file": path.name,
            "sha256": sha256_of(path),
            "model": model_key(weights),
            "text": {
                "sha256": self.text.sha256,
                "tokens": self.text.tokens,
                "documents": self.text.documents,
                "written_by": "the model itself",
            },
            "training": {**training, "features": list(self.config.features)},
            **facts,
        }
        path.with_suffix(".json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
        return recipe


def pad(
    read: Sequence[tuple[NDArray[Any], NDArray[np.bool_]]], device: str, starts: Sequence[int]
) -> Documents:
    """Returns documents, each with whether its tokens are learned, as a batch: filled up to the longest
    one. `starts` has where they begin in the text."""
    length = max(len(ids) for ids, _ in read)
    tokens = np.zeros((len(read), length), np.int64)
    learned = np.zeros((len(read), length), np.bool_)
    places = np.full((len(read), length), -1, np.int64)
    for row, ((ids, counted), start) in enumerate(zip(read, starts, strict=True)):
        tokens[row, : len(ids)] = ids
        learned[row, : len(ids)] = counted
        places[row, : len(ids)] = np.arange(start, start + len(ids))
    held = send(tokens, device)
    positions = torch.arange(length, device=device).repeat(len(read))
    packed = SequenceBatch(held.reshape(-1), positions, len(read), length)
    return Documents(packed, held, send(places.reshape(-1), device), learned)


def _ahead(batches: Iterator[Documents]) -> Iterator[Documents]:
    """Yields batches; the next one is read on a thread of its own while one is used."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Returns what is `by` places further on in each document; 0 past its end."""
    by = min(by, x.shape[1])
    return F.pad(x[:, by:], (0, by))


def _later(x: NDArray[np.bool_], by: int) -> NDArray[np.bool_]:
    """Returns what is `by` places further on in each document; False past its end."""
    shifted = np.zeros_like(x)
    shifted[:, : max(0, x.shape[1] - by)] = x[:, by:]
    return shifted
