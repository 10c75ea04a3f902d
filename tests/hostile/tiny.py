"""A tiny random model as GGUF and as safetensors files, built from plain values so that any value can be
replaced by a hostile one. Writing it takes neither `torch` nor `gguf`, so a child process starts quickly.

A `rich` model has settings that the plain one leaves to their defaults: more for a mutation to change.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hostile.gguf import ALIGNMENT, GGUF, Tensor, metadata

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


def _shapes(rich: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
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
    if rich:
        yield "output.weight", (DIM, len(TOKENS))


def tiny_gguf(template: str = TEMPLATE, context: int = CONTEXT, rich: bool = False) -> GGUF:
    """A llama of two layers with a token for each byte and three special tokens."""
    rng = np.random.default_rng(5)
    tensors = tuple(
        Tensor(name, dims, 0, rng.normal(0, 0.4, tuple(reversed(dims))).astype("<f4").tobytes())
        for name, dims in _shapes(rich)
    )
    values = {
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
    return GGUF(metadata(values | _RICH if rich else values), tensors)


_RICH: dict[str, Any] = {
    "general.alignment": ALIGNMENT,
    "llama.attention.head_count_kv": [KV_HEADS] * LAYERS,
    "llama.attention.key_length": DIM // HEADS,
    "llama.attention.sliding_window": 8,
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 2.0,
    "llama.rope.scaling.original_context_length": CONTEXT // 2,
    "tokenizer.ggml.add_bos_token": True,
}


def write_tiny(path: Path, template: str = TEMPLATE, context: int = CONTEXT) -> Path:
    path.write_bytes(tiny_gguf(template, context).to_bytes())
    return path


def write_tiny_holes(path: Path) -> Path:
    """Writes a random adapter for masked rows of the tiny model. Its mask is a special token."""
    from glassloop.train.adapter_file import write_adapter_file

    rng = np.random.default_rng(6)
    parts = {
        f"layers.{layer}.q": tuple(
            (rng.standard_normal(shape) * 0.1).astype(np.float32) for shape in ((2, DIM), (DIM, 2))
        )
        for layer in range(LAYERS)
    }
    vector = rng.standard_normal(DIM).astype(np.float32)
    mask = FIRST_SPECIAL + 2
    write_adapter_file(path, parts, 1.0, name="tiny", embedding=vector, mask_token=mask)  # type: ignore[arg-type]
    return path


# ── the same model as a folder of safetensors ──────────────────────────────────────────────────────────────

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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


_RICH_CONFIG: dict[str, Any] = {
    "tie_word_embeddings": False,
    "sliding_window": None,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": CONTEXT // 2,
    },
}


def tiny_folder(template: str = TEMPLATE, rich: bool = False) -> dict[str, bytes]:
    """The files of the folder, by name."""
    settings = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "chat_template": template}
    documents: dict[str, Any] = {
        "config.json": CONFIG | _RICH_CONFIG if rich else CONFIG,
        "tokenizer.json": _tokenizer() | _rich_tokenizer() if rich else _tokenizer(),
        "tokenizer_config.json": settings,
    }
    if rich:
        documents["generation_config.json"] = {"eos_token_id": [FIRST_SPECIAL + 1]}
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    return {"model.safetensors": _safetensors(rich), **files}


def write_folder(folder: Path, rich: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in tiny_folder(rich=rich).items():
        (folder / name).write_bytes(data)
    return folder


def _safetensors(rich: bool) -> bytes:
    header: dict[str, Any] = {}
    weights = bytearray()
    for tensor in tiny_gguf(rich=rich).tensors:
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, kind = stem.split(".")
            name = f"model.layers.{layer}.{_NAMES[kind]}.weight"
        else:
            name = f"{_NAMES[stem]}.weight"
        places = [len(weights), len(weights) + len(tensor.data)]
        header[name] = {"dtype": "F32", "shape": list(reversed(tensor.dims)), "data_offsets": places}
        weights += tensor.data
    plain = json.dumps(header).encode()
    return struct.pack("<Q", len(plain)) + plain + weights


def _tokenizer() -> dict[str, Any]:
    added = [
        {"id": FIRST_SPECIAL + place, "content": text, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for place, text in enumerate(SPECIALS)
    ]
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {token: number for number, token in enumerate(TOKENS[:FIRST_SPECIAL])}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": words,
        "post_processor": None,
        "decoder": words,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["Ġ", "t"]]},
    }


def _rich_tokenizer() -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": r" ?\p{L}+|\s+|."},
        "behavior": "Isolated",
        "invert": False,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    start = {"id": SPECIALS[0], "ids": [FIRST_SPECIAL], "tokens": [SPECIALS[0]]}
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": SPECIALS[0], "type_id": 0}}, first],
            "pair": [first, second],
            "special_tokens": {SPECIALS[0]: start},
        },
    }
