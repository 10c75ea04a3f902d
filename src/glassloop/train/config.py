"""The settings of a training run: one frozen dataclass, from presets, a TOML file and flags.

Every field is checked here, where it enters. The help texts are those of `glassloop train run --help`.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from glassloop.errors import GlassloopError
from glassloop.util.check import FLAG, TEXT, ValueRule, number_between, one_of, require
from glassloop.util.files import read_at_most

_MOST_CONFIG = 1_000_000
_WHOLE = 1 << 40
# Settings that a sweep decides for each of its runs.
SWEPT = (
    "model", "layers", "dim", "heads", "kv_heads", "ffn_dim", "steps", "teacher", "teacher_share",
    "on_policy", "on_policy_prompt",
    "validate_every", "patience", "checkpoint_every", "keep", "sample_every", "sample_prompt",
    "sample_tokens", "sample_temperature", "probe", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets",
)  # fmt: skip
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


class TrainError(GlassloopError):
    """A training run that cannot start, or that had to stop."""


class TrainingInterrupted(TrainError):
    """A run that was stopped by Ctrl-C, with a checkpoint after its last step."""

    def __init__(self, step: int, how: str) -> None:
        """`how` says how to go on."""
        super().__init__(f"interrupted after step {step}; {how}")
        self.step = step


CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


def need_torch() -> None:
    """Raises unless torch is installed. Without a GPU the message has the command for the CPU build: what pip
    installs on Linux otherwise brings gigabytes of CUDA libraries."""
    if find_spec("torch") is None:
        if sys.platform == "linux" and shutil.which("nvidia-smi") is None:
            raise TrainError(
                f"training needs torch; there is no NVIDIA GPU here, so the CPU build: {CPU_TORCH}"
            )
        raise TrainError("training needs torch: pip install torch")


def _option(
    default: Any, help: str, *, least: float = 0, most: float = _WHOLE, choices: tuple[str, ...] = ()
) -> Any:
    return field(default=default, metadata={"help": help, "least": least, "most": most, "choices": choices})


@dataclass(frozen=True)
class TrainConfig:
    # What is trained.
    model: str | None = _option(None, "The model to train further: a name, a folder or a .gguf file.")
    family: str = _option(
        "llama",
        "Family of a new model: llama, gpt2, qwen3, mistral.",
        choices=("llama", "gpt2", "qwen3", "mistral"),
    )
    layers: int = _option(4, "Layers of a new model.", least=1, most=4096)
    dim: int = _option(128, "Width of a new model.", least=2, most=1 << 16)
    heads: int = _option(4, "Attention heads of a new model.", least=1, most=1 << 10)
    kv_heads: int | None = _option(
        None, "Key-value heads of a new model; as many as heads by default.", least=1
    )
    ffn_dim: int | None = _option(
        None, "Width of the feed-forward; 8/3 of dim by default, or 4 for gpt2.", least=1
    )
    tied: bool = _option(True, "Whether the embedding of a new model is its language head too.")

    # The data.
    data: tuple[str, ...] = _option(
        (), "Text files, JSONL files, folders of both, or a folder of token files."
    )
    validation: tuple[str, ...] = _option((), "Data for validation, instead of a share of the data.")
    validation_share: float = _option(0.05, "The last share of the data, kept for validation.", most=0.9)
    tokenizer: str = _option("bpe", "'bpe', 'characters', or a model or folder whose tokenizer is used.")
    vocab_size: int = _option(4096, "Tokens of a new BPE.", least=257, most=1 << 20)
    length: int = _option(256, "Tokens of a sequence, and the context of a new model.", least=2, most=1 << 20)
    packing: str = _option(
        "stream",
        "'stream' cuts documents every length tokens, 'whole' keeps each in one sequence.",
        choices=("stream", "whole"),
    )
    borders: bool = _option(True, "Whether documents of one sequence are kept apart by the mask.")

    # The steps.
    steps: int = _option(1000, "Steps of the optimizer.", least=1)
    batch: int = _option(16, "Sequences that are computed at once.", least=1, most=1 << 16)
    accumulate: int = _option(1, "Batches whose gradients are added up in a step.", least=1, most=1 << 16)
    lr: float = _option(1e-3, "The highest learning rate.", least=1e-12, most=10)
    schedule: str = _option(
        "cosine",
        "How the learning rate falls: cosine, linear, constant.",
        choices=("cosine", "linear", "constant"),
    )
    warmup: int = _option(100, "Steps in which the learning rate rises.")
    final_lr: float = _option(0.1, "The last learning rate, as a share of the highest.", most=1)
    weight_decay: float = _option(0.1, "Weight decay of matrices.", most=10)
    beta1: float = _option(0.9, "AdamW's first decay rate.", most=0.99999)
    beta2: float = _option(0.99, "AdamW's second decay rate.", most=0.99999)
    clip: float = _option(1.0, "The largest norm of the gradient; 0 does not clip.")
    dropout: float = _option(0.0, "Dropout of attention weights and sublayers.", most=0.95)
    look_ahead: bool = _option(False, "Leave out the causal mask, to see what it is for.")
    teacher: str | None = _option(
        None, "Distil this model: learn its probabilities for the next token, not only the next token."
    )
    teacher_share: float = _option(1.0, "The teacher's share of the loss; the rest is the data's.", most=1)
    on_policy: float = _option(
        0.0, "The share of a distillation's steps that are on text which the student writes itself.", most=1
    )
    on_policy_prompt: int = _option(
        8, "Tokens of the data that the student's own texts begin with.", least=1, most=1 << 20
    )

    # LoRA.
    lora_rank: int = _option(0, "Train an adapter of this rank instead of the weights.", most=4096)
    lora_alpha: float = _option(16.0, "The adapter is scaled by alpha / rank.", least=1e-6, most=1e6)
    lora_dropout: float = _option(0.0, "Dropout of what goes into an adapter.", most=0.95)
    lora_targets: tuple[str, ...] = _option(LORA_TARGETS, "Matrices with an adapter.")

    # What happens on the way.
    validate_every: int = _option(100, "Steps between validations; 0: only at the end.")
    validation_tokens: int = _option(1 << 17, "Tokens of a validation, at most.", least=1)
    patience: int = _option(0, "Stop after this many validations without a better loss; 0: never.")
    checkpoint_every: int = _option(100, "Steps between checkpoints.", least=1)
    keep: int = _option(2, "Checkpoints that are kept.", least=1, most=1000)
    sample_every: int = _option(0, "Steps between samples of text; 0: only at the end.")
    sample_prompt: str = _option("", "What samples begin with; by default the first token of the data.")
    sample_tokens: int = _option(
        0, "Tokens of a sample; 0: 200, or 40 where a CPU trains a model further.", most=1 << 16
    )
    sample_temperature: float = _option(0.8, "Temperature of samples; 0 is greedy.", most=100)

    probe: tuple[str, ...] = _option((), "Words whose nearest embeddings are recorded at each validation.")

    # The machine.
    seed: int = _option(0, "Decides initial weights, the order of data and dropout.", most=2**63 - 1)
    device: str = _option("auto", "Where to train: auto, cpu, cuda.", choices=("auto", "cpu", "cuda"))
    precision: str = _option(
        "auto", "f32, or bf16 for products (auto: bf16 on a GPU).", choices=("auto", "f32", "bf16")
    )
    deterministic: bool = _option(True, "Use only kernels that give the same bits every time.")
    compile: bool = _option(False, "Compile the layers with torch.compile.")
    threads: int = _option(0, "Threads of the CPU; 0: all cores.", most=4096)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            _check(each, hints[each.name], getattr(self, each.name))
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise TrainError.about("heads", f"is {self.heads}; dim {self.dim} must be an even multiple of it")
        if self.heads % (self.kv_heads or self.heads):
            raise TrainError.about(
                "kv_heads", f"is {self.kv_heads}, which does not divide heads {self.heads}"
            )
        if self.on_policy and self.teacher is None:
            raise TrainError.about("on_policy", "needs a model to distil (--teacher NAME)")
        if self.on_policy and self.on_policy_prompt >= self.length:
            raise TrainError.about(
                "on_policy_prompt", f"is {self.on_policy_prompt}; less than length {self.length} is expected"
            )
        if self.lora_rank and self.model is None:
            raise TrainError.about("lora_rank", "needs a model to adapt (--model NAME)")
        unknown = set(self.lora_targets) - set(LORA_TARGETS)
        if unknown:
            target_names = ", ".join(LORA_TARGETS)
            raise TrainError.about("lora_targets", f"has {sorted(unknown)[0]!r}; {target_names} are expected")

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.accumulate * self.length


def options() -> list[tuple[Field[Any], type, bool]]:
    """Returns the fields of a config with the type of their values, and whether each is a list."""
    hints = get_type_hints(TrainConfig)
    return [(each, *_value_type(hints[each.name])) for each in fields(TrainConfig)]


def _value_type(hint: Any) -> tuple[type, bool]:
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    if get_args(hint):
        return get_args(hint)[0], True
    return hint, False


def _check(each: Field[Any], hint: Any, value: Any) -> None:
    kind, several = _value_type(hint)
    if value is None and isinstance(hint, UnionType):
        return
    for entry in value if several and isinstance(value, tuple) else (value,):
        require(each.name, entry, _KINDS[kind], TrainError)
        if kind in (int, float):
            require(each.name, entry, _range(each.metadata["least"], each.metadata["most"]), TrainError)
        if each.metadata["choices"]:
            require(each.name, entry, one_of(*each.metadata["choices"]), TrainError)


def _range(least: float, most: float) -> ValueRule:
    rule = number_between(least, most)
    return rule if most < _WHOLE else ValueRule(f"at least {least:g}", rule.fits)


_KINDS = {
    int: ValueRule("a whole number", lambda it: type(it) is int),
    float: ValueRule("a number", lambda it: type(it) in (int, float)),
    str: TEXT,
    bool: FLAG,
}


def plan_text(config: TrainConfig, steps: int, data: int) -> str:
    """Returns what `steps` steps read, where the data has this many tokens for training."""
    times = config.tokens_per_step / max(1, data)
    each = (
        f"it {times:.1f} times"
        if times >= 1.05
        else "it once"
        if times > 0.95
        else f"{100 * times:.3g} % of it"
    )
    sequences = config.batch * config.accumulate
    return (
        f"{steps:,} {'step' if steps == 1 else 'steps'} of {config.tokens_per_step:,} tokens"
        f" ({sequences} × {config.length}); the data has {data:,} tokens: a step reads {each},"
        f" all of them read it {steps * times:,.1f} times"
    )


def read_config(path: Path) -> dict[str, Any]:
    """Returns the settings of a TOML file. `preset` may be among them."""
    try:
        values = tomllib.loads(read_at_most(path, _MOST_CONFIG, TrainError).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainError(f"{path}: is not TOML: {error}") from None
    return values


def make_config(where: str, *layers: Mapping[str, Any]) -> TrainConfig:
    """Returns a config from settings in order of precedence, the last one first. `where` is named in
    errors."""
    setting_names = {each.name for each in fields(TrainConfig)}
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in setting_names:
                raise TrainError(f"{where}: there is no setting {name!r}", field=name)
            merged[name] = tuple(value) if isinstance(value, list) else value
    return TrainConfig(**merged)


def config_text(config: TrainConfig) -> str:
    """Returns a config as TOML."""
    lines = [f"{name} = {_toml(value)}" for name, value in asdict(config).items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            escaped = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or c in '"\\\x7f' else c for c in value)
            return f'"{escaped}"'
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
