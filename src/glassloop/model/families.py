"""The model families that we read, as data. A new family is an entry here and a row in the tests.

An entry says what is fixed for the family (`traits`, fields of ModelConfig), where its `config.json` keeps
the rest, and what it calls its weights. The forward pass knows nothing of families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from glassloop.ops.protocol import Activation

# Our field -> the key that most families use in config.json.
COMMON_KEYS = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "ffn_dim": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "context": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "activation": "hidden_act",
}


class Part(NamedTuple):
    """A weight that lies inside a fused one: third `place` of `of` along the output axis."""

    name: str
    place: int
    of: int = 3


# Our name for a layer's weight (without .weight/.bias) -> theirs. {i} is the layer.
_LLAMA_LAYER: dict[str, str | Part] = {
    "attn_norm": "layers.{i}.input_layernorm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "o": "layers.{i}.self_attn.o_proj",
    "q_norm": "layers.{i}.self_attn.q_norm",
    "k_norm": "layers.{i}.self_attn.k_norm",
    "ffn_norm": "layers.{i}.post_attention_layernorm",
    "gate": "layers.{i}.mlp.gate_proj",
    "up": "layers.{i}.mlp.up_proj",
    "down": "layers.{i}.mlp.down_proj",
}
_LLAMA_TOP: dict[str, str] = {"token_embedding": "embed_tokens", "final_norm": "norm", "head": "lm_head"}
_GEMMA_LAYER = _LLAMA_LAYER | {
    "attn_post_norm": "layers.{i}.post_attention_layernorm",
    "ffn_norm": "layers.{i}.pre_feedforward_layernorm",
    "ffn_post_norm": "layers.{i}.post_feedforward_layernorm",
}
_GPT_LAYER: dict[str, str | Part] = {
    "attn_norm": "h.{i}.ln_1",
    "q": Part("h.{i}.attn.c_attn", 0),
    "k": Part("h.{i}.attn.c_attn", 1),
    "v": Part("h.{i}.attn.c_attn", 2),
    "o": "h.{i}.attn.c_proj",
    "ffn_norm": "h.{i}.ln_2",
    "up": "h.{i}.mlp.c_fc",
    "down": "h.{i}.mlp.c_proj",
}
_GPT_KEYS = COMMON_KEYS | {
    "dim": "n_embd",
    "ffn_dim": "n_inner",
    "layers": "n_layer",
    "heads": "n_head",
    "context": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "activation": "activation_function",
}
_GPT_TRAITS: dict[str, Any] = {
    "norm": "layer",
    "gated": False,
    "positions": "learned",
    "qkv_bias": True,
    "out_bias": True,
    "ffn_bias": True,
}
_GEMMA_TRAITS: dict[str, Any] = {"norm_place": "sandwich"}

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class Family(NamedTuple):
    name: str
    types: tuple[str, ...]  # `model_type` in config.json, and `general.architecture` in GGUF
    traits: Mapping[str, Any] = {}
    keys: Mapping[str, str] = COMMON_KEYS
    # What config.json may leave out, because the family's own code has it as a default.
    defaults: Mapping[str, Any] = {}
    # Settings that change the computation in a way we do not do: (key, the only value that we accept).
    only: tuple[tuple[str, Any], ...] = ()
    top: Mapping[str, str] = _LLAMA_TOP
    layer: Mapping[str, str | Part] = _LLAMA_LAYER
    activations: Mapping[str, Activation] = ACTIVATIONS
    transposed: bool = False  # safetensors hold matrices as [in, out]
    norms_from_zero: bool = False  # safetensors hold a norm's weight minus one
    scaled_embedding: bool = False  # embeddings are multiplied by the square root of dim
    full_every: int | None = None  # with a window: only every n-th layer sees everything
    local_rope_base: float | None = None  # the base of layers with a window, where it differs
    nope_every: int | None = None  # every n-th layer has no positions
    gguf_pairs: bool = False  # GGUF interleaves the two halves that rotate together
    gguf_activation: Activation = "silu"
    # The one size whose queries are scaled by dim / heads instead of head_dim (GGUF does not say so).
    gguf_wide_scale_layers: int | None = None


FAMILIES = (
    Family(
        "gpt2",
        ("gpt2",),
        traits=_GPT_TRAITS,
        keys=_GPT_KEYS,
        only=(("scale_attn_by_inverse_layer_idx", False), ("scale_attn_weights", True)),
        top={
            "token_embedding": "wte",
            "position_embedding": "wpe",
            "final_norm": "ln_f",
            "head": "lm_head",
        },
        layer=_GPT_LAYER,
        defaults={"activation_function": "gelu_new", "tie_word_embeddings": True},
        transposed=True,
        gguf_activation="gelu_tanh",
    ),
    Family(
        "openai-gpt",
        ("openai-gpt",),
        traits=_GPT_TRAITS | {"norm_place": "post", "final_norm": False},
        keys=_GPT_KEYS | {"activation": "afn"},
        top={"token_embedding": "tokens_embed", "position_embedding": "positions_embed", "head": "lm_head"},
        layer=_GPT_LAYER,
        activations=ACTIVATIONS | {"gelu": "gelu_tanh"},
        defaults={"afn": "gelu", "tie_word_embeddings": True},
        transposed=True,
    ),
    Family(
        "xglm",
        ("xglm",),
        traits=_GPT_TRAITS | {"positions": "sinusoidal", "position_offset": 2, "norm_eps": 1e-5},
        keys=COMMON_KEYS
        | {
            "dim": "d_model",
            "ffn_dim": "ffn_dim",
            "layers": "num_layers",
            "heads": "attention_heads",
            "activation": "activation_function",
        },
        only=(("scale_embedding", True),),
        top={"token_embedding": "embed_tokens", "final_norm": "layer_norm", "head": "lm_head"},
        layer=_LLAMA_LAYER
        | {
            "attn_norm": "layers.{i}.self_attn_layer_norm",
            "o": "layers.{i}.self_attn.out_proj",
            "ffn_norm": "layers.{i}.final_layer_norm",
            "up": "layers.{i}.fc1",
            "down": "layers.{i}.fc2",
        },
        defaults={"activation_function": "gelu", "tie_word_embeddings": True},
        scaled_embedding=True,
    ),
    # SmolLM2 and Mistral in GGUF are of this family too.
    Family("llama", ("llama",), gguf_pairs=True),
    Family("mistral", ("mistral",), defaults={"sliding_window": 4096}),
    Family(
        "smollm3",
        ("smollm3",),
        nope_every=4,
        defaults={"rope_theta": 2_000_000.0, "tie_word_embeddings": True},
        gguf_pairs=True,
    ),
    Family("qwen2", ("qwen2",), traits={"qkv_bias": True}, defaults={"use_sliding_window": False}),
    Family("qwen3", ("qwen3",), traits={"qk_norm": True}, defaults={"use_sliding_window": False}),
    Family(
        "gemma2",
        ("gemma2",),
        traits=_GEMMA_TRAITS,
        keys=COMMON_KEYS | {"activation": "hidden_activation"},
        layer=_GEMMA_LAYER,
        defaults={
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        norms_from_zero=True,
        scaled_embedding=True,
        full_every=2,
        gguf_activation="gelu_tanh",
        gguf_wide_scale_layers=46,
    ),
    Family(
        "gemma3",
        ("gemma3_text", "gemma3"),
        traits=_GEMMA_TRAITS | {"qk_norm": True},
        keys=COMMON_KEYS | {"activation": "hidden_activation"},
        only=(("use_bidirectional_attention", False),),
        layer=_GEMMA_LAYER,
        defaults={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": True,
        },
        norms_from_zero=True,
        scaled_embedding=True,
        full_every=6,
        local_rope_base=10_000.0,
        gguf_activation="gelu_tanh",
        gguf_wide_scale_layers=62,
    ),
)
FAMILY_BY_TYPE = {type_name: family for family in FAMILIES for type_name in family.types}

# GGUF has one set of names for all families.
GGUF_TOP = {
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "final_norm": "output_norm",
    "head": "output",
}
GGUF_LAYER: dict[str, str | Part] = {
    "attn_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "o": "blk.{i}.attn_output",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "attn_post_norm": "blk.{i}.post_attention_norm",
    "ffn_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "ffn_post_norm": "blk.{i}.post_ffw_norm",
}
GGUF_FUSED_LAYER = GGUF_LAYER | {name: Part("blk.{i}.attn_qkv", index) for index, name in enumerate("qkv")}
