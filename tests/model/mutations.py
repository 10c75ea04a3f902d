"""Hostile model files made out of good ones: structured fields changed (metadata, dims, types, offsets,
values of a config) as well as single bytes. `rng` decides everything, so a seed is a case.

    mutated_gguf(data, rng)         -> bytes
    mutated_safetensors(data, rng)  -> bytes
    mutated_json(value, rng)        -> the same kind of value; for config.json, tokenizer.json and the like
    tiny_gguf()                     -> a whole model of 260 tokens with a chat template, as bytes
    tiny_folder(folder)             -> the same as config.json, model.safetensors and tokenizer.json
    use(path)                       -> loads it, generates, chats; raises what they raise
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from glassloop import LLM, Sampling
from glassloop.text.alphabet import BYTE_CHARACTERS

WORDS = ("", "a", "x" * 300, "\x00", "\x1b[2J", "é\u2028", "\ud800", "../up", "llama", "gpt2", "<|im_end|>")
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**16,
    2**24,
    2**30,
    2**31 - 1,
    2**31,
    2**32,
    2**48,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-45,
    1e-30,
    1e30,
    1e38,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e308,
)
_STRING, _ARRAY = 8, 9
_LAYOUTS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SPECIALS = ["<|im_start|>", "<|im_end|>", "<unk>", "<pad>"]
_TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


# --- GGUF ---


@dataclass
class Info:
    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass
class Layout:
    """A GGUF file taken apart: what is written again is the same bytes."""

    version: int
    metadata: list[tuple[bytes, int, Any]] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    data: bytes = b""
    alignment: int = 32

    @staticmethod
    def of(raw: bytes) -> Layout:
        reader = _Reader(raw, 4)
        layout = Layout(reader.number("I"))
        tensors, entries = reader.number("Q"), reader.number("Q")
        for _ in range(entries):
            key, kind = reader.string(), reader.number("I")
            layout.metadata.append((key, kind, reader.value(kind)))
        for _ in range(tensors):
            name = reader.string()
            dims = [reader.number("Q") for _ in range(reader.number("I"))]
            layout.infos.append(Info(name, dims, reader.number("I"), reader.number("Q")))
        layout.data = raw[-(-reader.at // 32) * 32 :]
        return layout

    def write(self, tensors: int | None = None, entries: int | None = None) -> bytes:
        """The file; the two counts may lie."""
        raw = b"GGUF" + struct.pack("<I", self.version & 0xFFFFFFFF)
        raw += _pack("Q", len(self.infos) if tensors is None else tensors)
        raw += _pack("Q", len(self.metadata) if entries is None else entries)
        for key, kind, value in self.metadata:
            raw += _string(key) + _pack("I", kind) + _value(kind, value)
        for info in self.infos:
            raw += _string(info.name) + _pack("I", len(info.dims))
            raw += b"".join(_pack("Q", dim) for dim in info.dims)
            raw += _pack("I", info.kind) + _pack("Q", info.offset)
        return raw + b"\0" * (-len(raw) % self.alignment) + self.data


@dataclass
class _Reader:
    raw: bytes
    at: int

    def number(self, layout: str) -> Any:
        value = struct.unpack_from("<" + layout, self.raw, self.at)[0]
        self.at += struct.calcsize("<" + layout)
        return value

    def string(self) -> bytes:
        size = self.number("Q")
        self.at += size
        return self.raw[self.at - size : self.at]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            return inner, [self.value(inner) for _ in range(count)]
        return self.number(_LAYOUTS[kind])


def _pack(layout: str, number: Any) -> bytes:
    if layout in "fd":
        try:
            return struct.pack("<" + layout, number)
        except OverflowError:
            return struct.pack("<" + layout, float("inf"))
    if layout == "?":
        return bytes([int(number) & 255])
    size = struct.calcsize("<" + layout)
    return (int(number) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _string(text: bytes) -> bytes:
    return _pack("Q", len(text)) + text


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value if isinstance(value, bytes) else b"x")
    if kind == _ARRAY:
        inner, items = value if isinstance(value, tuple) else (4, [])
        return _pack("I", inner) + _pack("Q", len(items)) + b"".join(_value(inner, item) for item in items)
    number = value if isinstance(value, (int, float)) else 0
    if kind in (6, 12) or (number == number and abs(number) != float("inf")):
        return _pack(_LAYOUTS.get(kind, "I"), number)
    return _pack(_LAYOUTS.get(kind, "I"), 0)


def mutated_gguf(data: bytes, rng: Random) -> bytes:
    """One to three changes to the fields of a good file, or to its bytes."""
    if rng.random() < 0.25:
        return _bytes_changed(data, rng, data.index(b"output_norm.weight"))
    layout = Layout.of(data)
    tensors = entries = None
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                _change_entry(layout, rng)
            case 4:
                layout.metadata.insert(rng.randrange(len(layout.metadata)), rng.choice(layout.metadata))
            case 5:
                layout.metadata.pop(rng.randrange(len(layout.metadata)))
            case 6 | 7:
                _change_info(rng.choice(layout.infos), layout, rng)
            case 8:
                layout.data = layout.data[: rng.randrange(len(layout.data) + 1)]
            case _:
                if rng.random() < 0.5:
                    tensors = rng.choice(NUMBERS)
                else:
                    entries = rng.choice(NUMBERS)
    return layout.write(tensors, entries)


def _change_entry(layout: Layout, rng: Random) -> None:
    at = rng.randrange(len(layout.metadata))
    key, kind, value = layout.metadata[at]
    if rng.random() < 0.15:
        kind, value = rng.choice(
            [
                (_STRING, _word(rng)),
                (6, rng.choice(FLOATS)),
                (10, rng.choice(NUMBERS)),
                (7, rng.choice([0, 1, 2])),
                (_ARRAY, (rng.choice([4, 6, 8, 9]), [])),
                (_ARRAY, (6, [rng.choice(FLOATS)] * 4)),
                (99, 0),
            ]
        )
    elif kind == _ARRAY:
        inner, items = value
        items = list(items)
        for _ in range(rng.randint(1, 3)):
            if items and rng.random() < 0.6:
                items[rng.randrange(len(items))] = _word(rng) if inner == _STRING else rng.choice(NUMBERS)
            elif items and rng.random() < 0.5:
                items = items[: rng.randrange(len(items))]
            else:
                items += items[-3:] or ([_word(rng)] if inner == _STRING else [1])
        value = (rng.choice([inner] * 9 + [_ARRAY, 12]), items)
    else:
        value = _word(rng) if kind == _STRING else rng.choice(FLOATS if kind in (6, 12) else NUMBERS)
    layout.metadata[at] = (key, kind, value)


def _word(rng: Random) -> bytes:
    return rng.choice(WORDS).encode("utf-8", "surrogatepass")


def _change_info(info: Info, layout: Layout, rng: Random) -> None:
    match rng.randrange(5):
        case 0:
            info.dims[rng.randrange(len(info.dims))] = rng.choice(NUMBERS)
        case 1:
            info.dims = info.dims * rng.randint(0, 3) + [1] * rng.randint(0, 2)
        case 2:
            info.kind = rng.choice([0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30, 99])
        case 3:
            info.offset = rng.choice([*NUMBERS, *(other.offset for other in layout.infos)])
        case _:
            info.name = rng.choice([_word(rng), rng.choice(layout.infos).name])


def _bytes_changed(data: bytes, rng: Random, most: int) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(most)
        match rng.randrange(4):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                raw[at : at + 8] = _pack("Q", rng.choice(NUMBERS))
            case 2:
                del raw[at : at + rng.randint(1, 40)]
            case _:
                raw[at:at] = raw[at : at + rng.randint(1, 40)]
    return bytes(raw if rng.random() < 0.9 else raw[: rng.randrange(len(raw))])


# --- safetensors and JSON ---


def mutated_safetensors(data: bytes, rng: Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3:
        return _bytes_changed(data, rng, 8 + size)
    header = mutated_json(json.loads(data[8 : 8 + size]), rng)
    raw = json.dumps(header).encode()
    if rng.random() < 0.1:
        raw = raw[:-1] + b"," + raw[1:]  # every key twice
    length = rng.choice(NUMBERS) if rng.random() < 0.1 else len(raw)
    return (
        _pack("Q", length) + raw + data[8 + size : rng.choice([len(data)] * 9 + [rng.randrange(len(data))])]
    )


def mutated_json(value: Any, rng: Random) -> Any:
    """One to three values anywhere in it changed, removed, doubled or put into lists."""
    made = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        _change_inside(made, rng)
    return made


def _change_inside(node: Any, rng: Random) -> None:
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.25:
            break
        node = node[key]
    old = node[key]
    match rng.randrange(8):
        case 0:
            del node[key]
        case 1 if isinstance(node, list):
            node.insert(key, old)
        case 2:
            node[key] = [old]
        case 3:
            node[key] = _deep(old, rng.choice([3, 300]))
        case 4 if isinstance(node, dict):
            node[rng.choice(WORDS)] = old
        case _:
            node[key] = rng.choice([*NUMBERS, *FLOATS, *WORDS, None, True, False, [], {}, 10**400])


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


# --- good files ---

_SIZES = {"dim": 32, "ffn": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "context": 64}


def _weights() -> dict[str, np.ndarray]:
    """By GGUF's names, [out, in]."""
    rng = np.random.default_rng(1)
    s, vocab = _SIZES, 256 + len(_SPECIALS)
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, s["dim"])}
    for i in range(s["layers"]):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (s["dim"],),
            f"blk.{i}.attn_q.weight": (q, s["dim"]),
            f"blk.{i}.attn_k.weight": (kv, s["dim"]),
            f"blk.{i}.attn_v.weight": (kv, s["dim"]),
            f"blk.{i}.attn_output.weight": (s["dim"], q),
            f"blk.{i}.ffn_norm.weight": (s["dim"],),
            f"blk.{i}.ffn_gate.weight": (s["ffn"], s["dim"]),
            f"blk.{i}.ffn_up.weight": (s["ffn"], s["dim"]),
            f"blk.{i}.ffn_down.weight": (s["dim"], s["ffn"]),
        }
    shapes |= {"output_norm.weight": (s["dim"],), "output.weight": (vocab, s["dim"])}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def tiny_gguf() -> bytes:
    s = _SIZES
    tokens = [character.encode() for character in BYTE_CHARACTERS] + [text.encode() for text in _SPECIALS]
    layout = Layout(3)
    layout.metadata = [
        (b"general.architecture", _STRING, b"llama"),
        (b"general.name", _STRING, b"tiny"),
        (b"general.alignment", 4, 32),
        (b"llama.block_count", 4, s["layers"]),
        (b"llama.context_length", 4, s["context"]),
        (b"llama.embedding_length", 4, s["dim"]),
        (b"llama.feed_forward_length", 4, s["ffn"]),
        (b"llama.attention.head_count", 4, s["heads"]),
        (b"llama.attention.head_count_kv", _ARRAY, (4, [s["kv_heads"]] * s["layers"])),
        (b"llama.attention.key_length", 4, s["head_dim"]),
        (b"llama.attention.layer_norm_rms_epsilon", 6, 1e-5),
        (b"llama.attention.sliding_window", 4, 8),
        (b"llama.rope.dimension_count", 4, s["head_dim"]),
        (b"llama.rope.freq_base", 6, 10_000.0),
        (b"llama.rope.scaling.type", _STRING, b"yarn"),
        (b"llama.rope.scaling.factor", 6, 2.0),
        (b"llama.rope.scaling.original_context_length", 4, 32),
        (b"tokenizer.ggml.model", _STRING, b"gpt2"),
        (b"tokenizer.ggml.pre", _STRING, b"gpt-2"),
        (b"tokenizer.ggml.tokens", _ARRAY, (_STRING, tokens)),
        (b"tokenizer.ggml.token_type", _ARRAY, (5, [1] * 256 + [3] * len(_SPECIALS))),
        (b"tokenizer.ggml.merges", _ARRAY, (_STRING, [])),
        (b"tokenizer.ggml.bos_token_id", 4, 256),
        (b"tokenizer.ggml.eos_token_id", 4, 257),
        (b"tokenizer.ggml.add_bos_token", 7, True),
        (b"tokenizer.chat_template", _STRING, _TEMPLATE.encode()),
    ]
    for name, values in _weights().items():
        layout.infos.append(Info(name.encode(), [*reversed(values.shape)], 0, len(layout.data)))
        layout.data += values.tobytes() + b"\0" * (-values.nbytes % 32)
    return layout.write()


_HF_LAYER = {
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
_HF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def tiny_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    data = b""
    for name, values in _weights().items():
        stem = name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, index, kind = stem.split(".")
            theirs = f"model.layers.{index}.{_HF_LAYER[kind]}.weight"
        else:
            theirs = f"{_HF_TOP[stem]}.weight"
        header[theirs] = {
            "dtype": "F32",
            "shape": [*values.shape],
            "data_offsets": [len(data), len(data) + values.nbytes],
        }
        data += values.tobytes()
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(_pack("Q", len(raw)) + raw + data)
    s = _SIZES
    config = {
        "model_type": "llama",
        "vocab_size": 256 + len(_SPECIALS),
        "hidden_size": s["dim"],
        "intermediate_size": s["ffn"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": s["head_dim"],
        "max_position_embeddings": s["context"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "sliding_window": None,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    specials = [
        {"id": 256 + i, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, text in enumerate(_SPECIALS)
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": specials,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r" ?\p{L}+|\s+|."},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                "<|im_start|>": {"id": "<|im_start|>", "ids": [256], "tokens": ["<|im_start|>"]}
            },
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {character: i for i, character in enumerate(BYTE_CHARACTERS)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": _TEMPLATE})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257]}))
    return folder


def use(path: Path) -> None:
    """What people do with a model: load it, generate, chat, decode."""
    llm = LLM(path, kv_memory="4MB", draft=False)
    try:
        sampling = Sampling(max_tokens=3, temperature=0, ignore_eos=True)
        llm.generate("hello <|im_end|> é", sampling)
        if llm.tokenizer.chat_template is not None:
            llm.chat([{"role": "user", "content": "x <|im_end|>"}], sampling)
        llm.tokenizer.decode(llm.tokenizer.encode("y"))
    finally:
        llm.engine.close()
