"""A tiny random model as GGUF and as safetensors files, built from plain values so that any value can be
replaced by a hostile one. Writing it takes neither `torch` nor `gguf`, so a child process starts quickly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from glassloop.text.alphabet import to_alphabet

DIM, FFN, LAYERS, HEADS, KV_HEADS, CONTEXT = 16, 32, 2, 2, 1, 512
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
MERGED = ("th", "Ġt")
TOKENS = [to_alphabet(bytes([byte])) for byte in range(256)] + [*MERGED, *SPECIALS]
FIRST_SPECIAL = 256 + len(MERGED)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# GGUF value types by the struct layout of one value.
_KINDS = {"<I": 4, "<i": 5, "<f": 6, "<?": 7, "<Q": 10, "<d": 12}


@dataclass(frozen=True)
class Info:
    """One tensor as the GGUF header describes it. `dims` has the fastest axis first."""

    name: str
    dims: tuple[int, ...]
    kind: int  # 0 is F32
    data: bytes
    offset: int | None = None  # where it really is unless given


@dataclass(frozen=True)
class GGUF:
    """A GGUF file before it is bytes. Whatever stands here is written, however wrong."""

    metadata: dict[str, Any]
    tensors: tuple[Info, ...]
    version: int = 3
    tensor_count: int | None = None
    entry_count: int | None = None

    def with_metadata(self, **changes: Any) -> GGUF:
        """Changes by key, with `__` for a dot; a value of None removes the key."""
        named = {key.replace("__", "."): value for key, value in changes.items()}
        merged = {key: value for key, value in (self.metadata | named).items() if value is not None}
        return replace(self, metadata=merged)

    def to_bytes(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entry_count = len(self.metadata) if self.entry_count is None else self.entry_count
        out = bytearray(b"GGUF" + struct.pack("<IQQ", self.version, tensor_count, entry_count))
        for key, value in self.metadata.items():
            out += _string(key) + _value(value)
        offset, data = 0, bytearray()
        for info in self.tensors:
            data += b"\0" * (-len(data) % _ALIGNMENT)
            offset = len(data) if info.offset is None else info.offset
            out += _string(info.name) + struct.pack("<I", len(info.dims))
            out += b"".join(struct.pack("<Q", dim % 2**64) for dim in info.dims)
            out += struct.pack("<IQ", info.kind % 2**32, offset % 2**64)
            data += info.data
        out += b"\0" * (-len(out) % _ALIGNMENT)
        return bytes(out + data)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            items = b"".join(_string(str(each)) for each in value)
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + items
        layout = _layout(next((each for each in value if isinstance(each, float)), 0))
        items = b"".join(struct.pack(layout, each) for each in value)
        return struct.pack("<IIQ", _ARRAY, _KINDS[layout], len(value)) + items
    layout = _layout(value)
    return struct.pack("<I", _KINDS[layout]) + struct.pack(layout, value)


def _layout(value: Any) -> str:
    if isinstance(value, bool):
        return "<?"
    if isinstance(value, float):
        return "<d" if abs(value) > 3e38 and value == value else "<f"
    if value < 0:
        return "<i"
    return "<I" if value < 2**32 else "<Q"


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    head = DIM // HEADS
    yield "token_embd.weight", (DIM, len(TOKENS))
    yield "output_norm.weight", (DIM,)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (DIM,)
        yield f"blk.{layer}.attn_q.weight", (DIM, DIM)
        yield f"blk.{layer}.attn_k.weight", (DIM, KV_HEADS * head)
        yield f"blk.{layer}.attn_v.weight", (DIM, KV_HEADS * head)
        yield f"blk.{layer}.attn_output.weight", (DIM, DIM)
        yield f"blk.{layer}.ffn_norm.weight", (DIM,)
        yield f"blk.{layer}.ffn_gate.weight", (DIM, FFN)
        yield f"blk.{layer}.ffn_up.weight", (DIM, FFN)
        yield f"blk.{layer}.ffn_down.weight", (FFN, DIM)


def tiny_gguf(template: str = TEMPLATE, context: int = CONTEXT) -> GGUF:
    """A llama of two layers with a token for each byte and three special tokens."""
    rng = np.random.default_rng(5)
    tensors = tuple(
        Info(name, dims, 0, rng.normal(0, 0.4, tuple(reversed(dims))).astype("<f4").tobytes())
        for name, dims in _shapes()
    )
    metadata = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": LAYERS,
        "llama.embedding_length": DIM,
        "llama.feed_forward_length": FFN,
        "llama.context_length": context,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": DIM // HEADS,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [1] * FIRST_SPECIAL + [3] * len(SPECIALS),
        "tokenizer.ggml.merges": ["t h", "Ġ t"],
        "tokenizer.ggml.bos_token_id": FIRST_SPECIAL,
        "tokenizer.ggml.eos_token_id": FIRST_SPECIAL + 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }
    return GGUF(metadata, tensors)


def write_tiny(path: Path, template: str = TEMPLATE, context: int = CONTEXT) -> Path:
    path.write_bytes(tiny_gguf(template, context).to_bytes())
    return path


# ── the same model as a folder of safetensors ──────────────────────────────────────────────────────────────

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": len(TOKENS),
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM // HEADS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": FIRST_SPECIAL,
    "eos_token_id": FIRST_SPECIAL + 1,
}


@dataclass(frozen=True)
class Folder:
    """A model folder before it is files."""

    header: dict[str, Any]
    weights: bytes
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    tokenizer_config: dict[str, Any] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        header = json.dumps(self.header).encode()
        return {
            "model.safetensors": struct.pack("<Q", len(header)) + header + self.weights,
            "config.json": json.dumps(self.config).encode(),
            "tokenizer.json": json.dumps(self.tokenizer).encode(),
            "tokenizer_config.json": json.dumps(self.tokenizer_config).encode(),
        }


def tiny_folder(template: str = TEMPLATE) -> Folder:
    header: dict[str, Any] = {}
    weights = bytearray()
    for info in tiny_gguf().tensors:
        stem = info.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, kind = stem.split(".")
            name = f"model.layers.{layer}.{_NAMES[kind]}.weight"
        else:
            name = f"{_NAMES[stem]}.weight"
        places = [len(weights), len(weights) + len(info.data)]
        header[name] = {"dtype": "F32", "shape": list(reversed(info.dims)), "data_offsets": places}
        weights += info.data
    added = [
        {"id": FIRST_SPECIAL + place, "content": text, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for place, text in enumerate(SPECIALS)
    ]
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {token: number for number, token in enumerate(TOKENS)}
    model = {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["Ġ", "t"]]}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": words,
        "post_processor": None,
        "decoder": words,
        "model": model,
    }
    settings = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "chat_template": template}
    return Folder(header, bytes(weights), dict(CONFIG), tokenizer, settings)
