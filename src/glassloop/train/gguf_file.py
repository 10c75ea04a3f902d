"""Writes GGUF files: the inverse of `model/gguf.py`, `model/config_gguf.py` and
`text/readers/gguf_vocab.py`.

Most of it maps configs and tokenizers, which no library does. `glassloop models convert` is a command of the
core package, so the fifty lines that write the file are here too: the `gguf` package would add `requests`,
`pyyaml` and `tqdm` to its dependencies, and 0.6 s to its start.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.config import DenseConfig, ModelConfig
from glassloop.model.config_gguf import config_from_gguf
from glassloop.model.families import FAMILY_BY_TYPE, GGUF_FUSED_LAYER, GGUF_LAYER, GGUF_TOP, WeightPart
from glassloop.model.gguf import MAGIC
from glassloop.model.loader import ModelFiles
from glassloop.model.rope import LinearScaling, ListedScaling, Llama3Scaling, Rope, YarnScaling
from glassloop.model.weight_names import family_of
from glassloop.ops.quant import F32, FORMATS, Bytes, Float32, Format, quantize
from glassloop.ops.tensor import Computed, Tensor
from glassloop.text.pretokenizers import GGUF_RULES
from glassloop.util.files import whole_file

_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # kinds of tokens


FormatOf = Callable[
    [str, tuple[int, ...]], Format
]  # the format of a tensor by its name in GGUF and its shape
Written = Callable[[Tensor, Bytes], None]  # is called with each tensor and its bytes when it has been written


def write_gguf(path: Path, files: ModelFiles, weights: Mapping[str, Float32], format: str) -> Path:
    """Writes a model with its tokenizer. Matrices are stored in a format (F32, F16, BF16, Q8_0, Q4_1);
    vectors, and matrices that do not fit it, in F32."""

    def format_of(name: str, shape: tuple[int, ...]) -> Format:
        fits = len(shape) == 2 and shape[1] % FORMATS[format].block_values == 0
        return FORMATS[format] if fits and not name.startswith("position_") else F32

    metadata, tensors = gguf_parts(path, files, weights.__getitem__, format_of)
    write_tensors(path, metadata, tensors)
    return path


def gguf_parts(
    path: Path, files: ModelFiles, values_of: Callable[[str], Float32], format_of: FormatOf
) -> tuple[dict[str, Any], list[Tensor]]:
    """Returns the metadata and the tensors of a GGUF file for a model. A tensor is computed when its bytes
    are read, from the values that `values_of` returns for our names of weights."""
    config = files.config
    family = family_of(config)
    if family.name in ("openai-gpt", "xglm"):
        raise ModelError(f"{config.family} models have no form in GGUF; write a folder instead")
    if config.is_recurrent or family.experts is not None:
        raise ModelError(f"{config.family} models are read, but not written to GGUF")
    architecture = "llama" if family.name == "mistral" else family.types[0].removesuffix("_text")
    pairs = FAMILY_BY_TYPE[architecture].gguf_pairs
    tensors: list[Tensor] = [
        _tensor(name, parts, config, format_of, values_of) for name, parts in _named(config, pairs).items()
    ]
    metadata: dict[str, Any] = {"general.architecture": architecture, "general.name": path.stem}
    metadata |= {f"{architecture}.{key}": value for key, value in _config(config).items()}
    scaled = _listed_scaling(config)
    if scaled is not None:
        tensors.append(Tensor.of("rope_freqs.weight", scaled))
    read_back = config_from_gguf(str(path), metadata, {tensor.name: tensor for tensor in tensors})[1]
    _compare(path, config, read_back)
    return metadata | _tokenizer(files), tensors


def _compare(path: Path, config: ModelConfig, read_back: ModelConfig) -> None:
    """Raises unless the file means the same model. Frequencies that are listed one by one count as equal to
    the rule that they come from."""

    def facts(model: ModelConfig) -> list[object]:
        facts: list[object] = [model.vocab_size, model.dim, model.context, model.tied, model.logit_softcap]
        for layer, mixer in zip(model.layers, model.attention_layers, strict=True):
            facts += [mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.window, mixer.softcap]
            facts += [float(np.float32(mixer.scale)), layer.feed_forward, layer.norm_place]
            facts.append(float(np.float32(layer.norm.eps)))
            if mixer.rope is not None:
                facts.append(np.round(mixer.rope.frequencies(), 6).tobytes())
        return facts

    if facts(config) != facts(read_back):
        raise ModelError(f"{path}: GGUF cannot express this {config.family} model; write a folder instead")


class _Weight(NamedTuple):
    """One of our weights in a tensor of GGUF, which may be a part of it."""

    name: str
    interleaved: bool  # the rows of each head in pairs


def _named(config: ModelConfig, pairs: bool) -> dict[str, list[_Weight]]:
    """Returns GGUF's names of tensors, with the weights that make each, fused where the family has them
    so."""
    fused = any(isinstance(entry, WeightPart) for entry in family_of(config).layer.values())
    layer = GGUF_FUSED_LAYER if fused else GGUF_LAYER
    weights_of: dict[str, list[_Weight]] = {}
    for name in config.shapes():  # q, k, v in this order, which is the order of the parts
        stem, _, suffix = name.rpartition(".")
        kind = ""
        if stem.startswith("layers."):
            _, index, kind = stem.split(".")
            entry = layer[kind]
            theirs = (entry.name if isinstance(entry, WeightPart) else entry).format(i=index)
        else:
            theirs = GGUF_TOP[stem]
        weights_of.setdefault(f"{theirs}.{suffix}", []).append(_Weight(name, pairs and kind in ("q", "k")))
    return weights_of


def _tensor(
    name: str,
    parts: list[_Weight],
    config: ModelConfig,
    format_of: FormatOf,
    values_of: Callable[[str], Float32],
) -> Tensor:
    shapes = [config.shapes()[part.name] for part in parts]
    shape = (sum(each[0] for each in shapes), *shapes[0][1:])
    format = format_of(name, shape)

    def compute() -> Bytes:
        values = [
            _interleaved(values_of(part.name), config.head_dim) if part.interleaved else values_of(part.name)
            for part in parts
        ]
        whole = np.concatenate(values) if len(values) > 1 else values[0]
        return quantize(format, np.ascontiguousarray(whole, np.float32).reshape(-1))

    return Computed.later(name, shape, format, compute)


def _interleaved(values: Float32, head_dim: int) -> Float32:
    """Reorders the rows of each head from a0 a1 … b0 b1 … to a0 b0 a1 b1 …, as the llama family has them."""
    order = np.arange(len(values)).reshape(-1, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    return values[order]


def _config(config: ModelConfig) -> dict[str, Any]:
    family = family_of(config)
    mixer, dense = config.attention, config.layers[0].feed_forward
    assert isinstance(dense, DenseConfig), "the families that are written have no experts"
    layer_norm = "" if family.norm == "layer" else "rms_"
    values: dict[str, Any] = {
        "block_count": len(config.layers),
        "context_length": config.context,
        "embedding_length": config.dim,
        "feed_forward_length": dense.ffn_dim,
        "attention.head_count": mixer.heads,
        "attention.head_count_kv": mixer.kv_heads,
        f"attention.layer_norm_{layer_norm}epsilon": config.layers[0].norm.eps,
        "vocab_size": config.vocab_size,
    }
    if family.positions == "rotary":
        values |= _rotary(config)
        values |= {"attention.key_length": mixer.head_dim, "attention.value_length": mixer.head_dim}
        if abs(mixer.scale - mixer.head_dim**-0.5) > 1e-9:
            values["attention.scale"] = mixer.scale
    if mixer.softcap is not None:
        values["attn_logit_softcapping"] = mixer.softcap
    if config.logit_softcap is not None:
        values["final_logit_softcapping"] = config.logit_softcap
    return values


def _rotary(config: ModelConfig) -> dict[str, Any]:
    mixers = config.attention_layers
    full = _full_rope(config)
    values: dict[str, Any] = {"rope.dimension_count": full.dim, "rope.freq_base": full.base}
    near = next((m.rope for m in mixers if m.rope and m.window is not None), None)
    if near is not None and near.base != full.base:
        values["rope.freq_base_swa"] = near.base
    match full.scaling:
        case LinearScaling(factor):
            values |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
        case YarnScaling(factor, context, fast, slow, sharpness, _):
            values |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": factor,
                "rope.scaling.original_context_length": context,
                "rope.scaling.yarn_beta_fast": fast,
                "rope.scaling.yarn_beta_slow": slow,
            }
            if sharpness is not None:
                values["rope.scaling.attn_factor"] = sharpness
    window = next((mixer.window for mixer in mixers if mixer.window is not None), None)
    if window is not None:
        values["attention.sliding_window"] = window
        if any(mixer.window is None for mixer in mixers):
            local = [mixer.window is not None for mixer in mixers]
            values["attention.sliding_window_pattern"] = np.array(local, bool)
    return values


def _full_rope(config: ModelConfig) -> Rope:
    mixers = config.attention_layers
    turned = [mixer for mixer in mixers if mixer.rope is not None]
    if not turned:
        return Rope(10_000.0, config.head_dim)
    chosen = next((mixer for mixer in turned if mixer.window is None), turned[0]).rope
    assert chosen is not None
    return chosen


def _listed_scaling(config: ModelConfig) -> Float32 | None:
    """Returns what each frequency is divided by, for a scaling that GGUF has no rule for."""
    if config.positions != "rotary":
        return None
    rope = _full_rope(config)
    if not isinstance(rope.scaling, Llama3Scaling | ListedScaling):
        return None
    return np.asarray(rope._replace(scaling=None).frequencies() / rope.frequencies(), np.float32)


def _tokenizer(files: ModelFiles) -> dict[str, Any]:
    """Returns the `tokenizer.*` metadata: those of a GGUF file as they are, or made from tokenizer.json."""
    if not files.path.is_dir():
        return {key: value for key, value in files.metadata.items() if key.startswith("tokenizer.")}
    if not (files.path / "tokenizer.json").exists():
        return {}
    tokenizer = files.tokenizer()
    state = json.loads(tokenizer.json_files()["tokenizer.json"])
    model = state["model"]
    if model["type"] != "BPE":
        raise ModelError(f"{files.path}: only a BPE tokenizer can be written as GGUF, not {model['type']}")
    rows = files.config.vocab_size
    tokens = [f"[unused{number}]" for number in range(rows)]
    kinds = [_NORMAL] * rows
    for text, number in model["vocab"].items():
        tokens[number] = text
    for added in state["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _word_rule(files, state["pre_tokenizer"], bool(model.get("ignore_merges"))),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": tokenizer.add_bos,
        "tokenizer.ggml.add_eos_token": tokenizer.add_eos,
    }
    if tokenizer.bos_id is not None:
        values["tokenizer.ggml.bos_token_id"] = tokenizer.bos_id
    for key, number in zip(("eos_token_id", "eot_token_id", "eom_token_id"), tokenizer.eos_ids, strict=False):
        values[f"tokenizer.ggml.{key}"] = number
    if tokenizer.chat_template is not None:
        values["tokenizer.chat_template"] = tokenizer.chat_template.source
    return values


def _word_rule(files: ModelFiles, pre_tokenizer: Any, ignore_merges: bool) -> str:
    """Returns GGUF's name for the rule that a tokenizer.json cuts words with."""
    for name, rule in GGUF_RULES.items():
        built = rule.build().__getstate__()
        same = json.loads(built if isinstance(built, (str, bytes)) else bytes(built)) == pre_tokenizer
        if same and rule.ignore_merges == ignore_merges:
            return name
    gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    if isinstance(pre_tokenizer, dict) and gpt2.items() <= pre_tokenizer.items():
        return "gpt-2"
    raise ModelError(f"{files.path}: GGUF has no name for the way in which this tokenizer cuts words")


def write_tensors(
    path: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor], written: Written | None = None
) -> None:
    """Writes a GGUF file with these tensors as they are stored, one at a time."""
    head = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    at = 0
    for tensor in tensors:
        head += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.format.gguf_id, at)
        at += -(-tensor.format.size_of(tensor.size) // _ALIGNMENT) * _ALIGNMENT
    with whole_file(path) as file:
        file.write(bytes(head) + bytes(-len(head) % _ALIGNMENT))
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.data)
            file.write(data.data)
            file.write(bytes(-len(data) % _ALIGNMENT))
            if written is not None:
                written(tensor, data)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case np.ndarray():
            kind = {"float32": _FLOAT32, "int32": _INT32, "uint32": _UINT32, "bool": _BOOL}[value.dtype.name]
            return struct.pack("<IIQ", _ARRAY, kind, len(value)) + value.tobytes()
        case list() if value and isinstance(value[0], int):
            return _value(np.array(value, np.int32))
        case list():
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
    raise TypeError(f"GGUF has no type for {type(value).__name__}")
