"""The model families that can be read, as data. A new family is an entry here and a row in the tests.

An entry says what is fixed for the family, where its `config.json` keeps the rest, and what it calls its
weights. The forward pass knows nothing of families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from glassloop.model.config import NormPlace
from glassloop.model.expert_families import (
    ERNIE4_5_MOE,
    GLM4_MOE,
    GPT_OSS,
    GRANITE_MOE,
    HUNYUAN_MOE,
    MINIMAX_M2,
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
    ExpertFamily,
)
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
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "ffn_bias": "mlp_bias",
}


class WeightPart(NamedTuple):
    """A weight that is part of a fused matrix, along its output axis."""

    name: str
    place: int
    among: tuple[str, ...] = ("q", "k", "v")  # our names of what the matrix holds, in order
    each_head: bool = False  # the parts of each head lie together


# What in_proj of LFM2 holds.
LFM2_PROJECTION = ("conv_before", "conv_after", "conv_in")


class Bare(str):
    """The whole name of a weight, to which no .weight is added."""


# Our name for a layer's weight (without .weight/.bias) -> theirs. {i} is the layer.
_LLAMA_LAYER: dict[str, str | WeightPart] = {
    "attn_norm": "layers.{i}.input_layernorm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "o": "layers.{i}.self_attn.o_proj",
    "q_norm": "layers.{i}.self_attn.q_norm",
    "k_norm": "layers.{i}.self_attn.k_norm",
    "sinks": Bare("layers.{i}.self_attn.sinks"),
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
# Fused matrices, as Phi-3 has them.
_FUSED_QKV = {name: WeightPart("layers.{i}.self_attn.qkv_proj", n) for n, name in enumerate("qkv")}
_FUSED_GATE = {
    name: WeightPart("layers.{i}.mlp.gate_up_proj", n, ("gate", "up"))
    for n, name in enumerate(("gate", "up"))
}
_GPT_LAYER: dict[str, str | WeightPart] = {
    "attn_norm": "h.{i}.ln_1",
    "q": WeightPart("h.{i}.attn.c_attn", 0),
    "k": WeightPart("h.{i}.attn.c_attn", 1),
    "v": WeightPart("h.{i}.attn.c_attn", 2),
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
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class ModelFamily(NamedTuple):
    name: str
    types: tuple[str, ...]  # `model_type` in config.json, and `general.architecture` in GGUF
    title: str = ""  # what people call it, in messages and in the documentation

    # What the layers are made of.
    norm: Literal["rms", "layer"] = "rms"
    norm_place: NormPlace = "pre"
    norm_bias: bool = True  # of a layer norm
    stream_scale: bool = False  # each layer ends with a factor of its own
    v_norm: bool = False  # of each head of the values, without a weight
    scale: float | None = None  # of queries and keys; None: as files say, or by the size of a head
    parallel: bool = False  # attention and feed-forward read the same norm
    norm_eps: float | None = None  # where no file says it
    final_norm: bool = True
    positions: Literal["rotary", "learned", "sinusoidal"] = "rotary"
    position_offset: int = 0
    gated: bool = True
    qk_norm: bool | None = False  # None: as the file says
    qk_norm_of: Literal["heads", "rows"] = "heads"
    qk_norm_last: bool = False  # after the rotation
    qkv_bias: bool = False  # biases that every model of the family has; files may tell of more
    other_biases: bool = False
    output_gate: bool = False
    sinks: bool = False
    scaled_embedding: bool = False  # embeddings are multiplied by the square root of dim
    full_every: int | None = None  # with a window: only every n-th layer sees everything
    local_rope_base: float | None = None  # the base of layers with a window, where it differs
    nope_every: int | None = None  # every n-th layer has no positions
    more_layers: bool = False  # files have further ones, which predict more tokens and are not used
    nope_beside_windows: bool = False  # where some layers have a window, the others have no positions
    plain_windows: bool = False  # layers with a window turn without the scaling of the others
    logit_divisor: bool = False  # the factor of the logits is stored as a divisor
    # What the layers have that have no attention, and what `layer_types` calls them.
    recurrent: Literal["short_conv"] | None = None
    recurrent_type: str = ""
    # Trained on whole masked texts: the logits of a row are about its own position, or about the next one.
    masked: Literal["own", "next"] | None = None

    experts: ExpertFamily | None = None  # in some layers or in all

    # How config.json says the rest.
    keys: Mapping[str, str] = COMMON_KEYS
    defaults: Mapping[str, Any] = {}  # of what config.json may leave out
    only: tuple[tuple[str, Any], ...] = ()  # (key, the one value that the forward pass here supports)
    activations: Mapping[str, Activation] = ACTIVATIONS

    # What safetensors call the weights, and how they store them.
    top: Mapping[str, str] = _LLAMA_TOP
    layer: Mapping[str, str | WeightPart] = _LLAMA_LAYER
    transposed: bool = False  # matrices are [in, out]
    pairs: bool = False  # the two halves that rotate together are interleaved
    norms_from_zero: bool = False  # a norm's weight is stored minus one

    gguf_top: Mapping[str, str] = {}  # where a name in GGUF is not that of all families
    gguf_layer: Mapping[str, str | WeightPart] = {}

    # What GGUF does not say.
    gguf_pairs: bool = False  # the two halves that rotate together are interleaved
    gguf_activation: Activation = "silu"
    gguf_yarn_truncates: bool = True  # whether the bounds of YaRN's blend are whole dimensions
    gguf_wide_scale_layers: int | None = (
        None  # so many layers: queries are scaled by dim / heads, not head_dim
    )


_GPT2 = ModelFamily(
    "gpt2",
    ("gpt2",),
    title="GPT-2",
    norm="layer",
    positions="learned",
    gated=False,
    qkv_bias=True,
    other_biases=True,
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
)
_GEMMA2 = ModelFamily(
    "gemma2",
    ("gemma2",),
    title="Gemma 2",
    norm_place="sandwich",
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
)
_GRANITE = ModelFamily(
    "granite",
    ("granite",),
    title="Granite 3",
    keys=COMMON_KEYS
    | {
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "scale": "attention_multiplier",
        "logit_scale": "logits_scaling",
    },
    defaults={"attention_multiplier": 1.0},
    logit_divisor=True,
    gguf_pairs=True,
)
_HUNYUAN = ModelFamily(
    "hunyuan-dense",
    ("hunyuan_v1_dense", "hunyuan-dense"),
    title="Hunyuan",
    qk_norm=True,
    qk_norm_last=True,
    layer=_LLAMA_LAYER
    | {
        "q_norm": "layers.{i}.self_attn.query_layernorm",
        "k_norm": "layers.{i}.self_attn.key_layernorm",
    },
    defaults={"rms_norm_eps": 1e-5},
)
_ERNIE = ModelFamily(
    "ernie4_5",
    ("ernie4_5",),
    title="Ernie 4.5",
    keys=COMMON_KEYS | dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), "use_bias"),
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
    },
    pairs=True,
    gguf_pairs=True,
)
FAMILIES = (
    _GPT2,
    _GPT2._replace(
        name="openai-gpt",
        types=("openai-gpt",),
        title="GPT",
        norm_place="post",
        final_norm=False,
        keys=_GPT_KEYS | {"activation": "afn"},
        only=(),
        top={"token_embedding": "tokens_embed", "position_embedding": "positions_embed", "head": "lm_head"},
        activations=ACTIVATIONS | {"gelu": "gelu_tanh"},
        defaults={"afn": "gelu", "tie_word_embeddings": True},
    ),
    ModelFamily(
        "xglm",
        ("xglm",),
        title="XGLM",
        norm="layer",
        norm_eps=1e-5,
        positions="sinusoidal",
        position_offset=2,
        gated=False,
        qkv_bias=True,
        other_biases=True,
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
    ModelFamily("llama", ("llama",), title="Llama", gguf_pairs=True),
    ModelFamily("mistral", ("mistral",), title="Mistral", defaults={"sliding_window": 4096}),
    ModelFamily(
        "smollm3",
        ("smollm3",),
        title="SmolLM3",
        nope_every=4,
        defaults={"rope_theta": 2_000_000.0, "tie_word_embeddings": True},
        gguf_pairs=True,
    ),
    ModelFamily("qwen2", ("qwen2",), title="Qwen2", qkv_bias=True, defaults={"use_sliding_window": False}),
    ModelFamily("qwen3", ("qwen3",), title="Qwen3", qk_norm=True, defaults={"use_sliding_window": False}),
    ModelFamily(
        "qwen2moe",
        ("qwen2_moe", "qwen2moe"),
        title="Qwen2-MoE",
        qkv_bias=True,
        experts=QWEN2_MOE,
        defaults={"use_sliding_window": False},
    ),
    ModelFamily(
        "qwen3moe",
        ("qwen3_moe", "qwen3moe"),
        title="Qwen3-MoE",
        qk_norm=True,
        experts=QWEN3_MOE,
        defaults={"use_sliding_window": False},
    ),
    # In GGUF, a model of the family llama that has experts.
    ModelFamily(
        "mixtral",
        ("mixtral",),
        title="Mixtral",
        experts=MIXTRAL,
        defaults={"rope_theta": 1_000_000.0},
        gguf_pairs=True,
    ),
    ModelFamily(
        "olmo2",
        ("olmo2", "olmo3"),
        title="OLMo 2 and 3",
        norm_place="output",
        qk_norm=True,
        qk_norm_of="rows",
        defaults={"rms_norm_eps": 1e-5},
        layer=_GEMMA_LAYER,
        full_every=4,
        plain_windows=True,
    ),
    ModelFamily(
        "phi3",
        ("phi3",),
        title="Phi-3 and 4",
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        layer=_LLAMA_LAYER | _FUSED_QKV | _FUSED_GATE,
        gguf_layer={
            name: WeightPart("blk.{i}.ffn_up", n, ("gate", "up")) for n, name in enumerate(("gate", "up"))
        },
    ),
    _GRANITE,
    ModelFamily(
        "ministral3",
        ("ministral3", "mistral3"),
        title="Ministral 3",
        defaults={"rms_norm_eps": 1e-5},
        gguf_pairs=True,
    ),
    _HUNYUAN,
    _ERNIE,
    ModelFamily(
        "seed_oss",
        ("seed_oss",),
        title="Seed-OSS",
        keys=COMMON_KEYS | {"out_bias": "attention_out_bias"},
        defaults={"attention_bias": True, "head_dim": 128},
        gguf_layer={"ffn_norm": "blk.{i}.post_attention_norm"},
    ),
    ModelFamily(
        "exaone4",
        ("exaone4",),
        title="EXAONE 4",
        norm_place="output",
        qk_norm=True,
        defaults={"rms_norm_eps": 1e-5},
        layer=_GEMMA_LAYER,
        full_every=4,
        nope_beside_windows=True,
    ),
    ModelFamily(
        "cohere2",
        ("cohere2",),
        title="Cohere 2",
        norm="layer",
        norm_bias=False,
        parallel=True,
        keys=COMMON_KEYS | {"norm_eps": "layer_norm_eps", "logit_scale": "logit_scale"},
        defaults={
            "logit_scale": 0.0625,
            "layer_norm_eps": 1e-5,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
        full_every=4,
        nope_beside_windows=True,
        pairs=True,
        gguf_pairs=True,
    ),
    ModelFamily(
        "nemotron",
        ("nemotron",),
        title="Nemotron",
        norm="layer",
        gated=False,
        keys=COMMON_KEYS | {"norm_eps": "norm_eps"},
        defaults={"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
        norms_from_zero=True,
        gguf_activation="relu2",
    ),
    ModelFamily(
        "starcoder2",
        ("starcoder2",),
        title="StarCoder 2",
        norm="layer",
        gated=False,
        keys=COMMON_KEYS
        | {"norm_eps": "norm_epsilon"}
        | dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), "use_bias"),
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        layer=_LLAMA_LAYER | {"up": "layers.{i}.mlp.c_fc", "down": "layers.{i}.mlp.c_proj"},
        gguf_activation="gelu_tanh",
    ),
    ModelFamily(
        "olmoe",
        ("olmoe",),
        title="OLMoE",
        qk_norm=True,
        qk_norm_of="rows",
        experts=OLMOE,
        defaults={"rms_norm_eps": 1e-5},
        only=(("clip_qkv", None),),
    ),
    ModelFamily(
        "gpt-oss",
        ("gpt_oss", "gpt-oss"),
        title="gpt-oss",
        sinks=True,
        qkv_bias=True,
        full_every=2,
        experts=GPT_OSS,
        defaults={
            "head_dim": 64,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "sliding_window": 128,
        },
        gguf_layer={"ffn_norm": "blk.{i}.post_attention_norm"},
        gguf_yarn_truncates=False,
    ),
    ModelFamily(
        "glm4moe",
        ("glm4_moe", "glm4moe"),
        title="GLM-4.5 to 4.7",
        qk_norm=None,
        more_layers=True,
        experts=GLM4_MOE,
        keys=COMMON_KEYS | {"out_bias": "attention_out_bias"},
        defaults={
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "use_qk_norm": False,
        },
        gguf_layer={"ffn_norm": "blk.{i}.post_attention_norm"},
    ),
    ModelFamily(
        "minimax-m2",
        ("minimax_m2", "minimax-m2"),
        title="MiniMax-M2",
        qk_norm=True,
        qk_norm_of="rows",
        experts=MINIMAX_M2,
        defaults={"head_dim": 128, "rope_theta": 5_000_000.0},
    ),
    _GRANITE._replace(name="granitemoe", types=("granitemoe",), title="Granite MoE", experts=GRANITE_MOE),
    _ERNIE._replace(
        name="ernie4_5-moe",
        types=("ernie4_5_moe", "ernie4_5-moe"),
        title="Ernie 4.5 MoE",
        experts=ERNIE4_5_MOE,
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": True,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    _HUNYUAN._replace(
        name="hunyuan-moe",
        types=("hunyuan_v1_moe", "hunyuan-moe"),
        title="Hunyuan MoE",
        experts=HUNYUAN_MOE,
    ),
    ModelFamily(
        "lfm2",
        ("lfm2",),
        title="LFM2",
        qk_norm=True,
        recurrent="short_conv",
        recurrent_type="conv",
        keys=COMMON_KEYS | {"norm_eps": "norm_eps"},
        defaults={"rope_theta": 1_000_000.0, "tie_word_embeddings": True, "norm_eps": 1e-5},
        top=_LLAMA_TOP | {"final_norm": "embedding_norm"},
        layer=_LLAMA_LAYER
        | {
            "attn_norm": "layers.{i}.operator_norm",
            "o": "layers.{i}.self_attn.out_proj",
            "q_norm": "layers.{i}.self_attn.q_layernorm",
            "k_norm": "layers.{i}.self_attn.k_layernorm",
            "ffn_norm": "layers.{i}.ffn_norm",
            "gate": "layers.{i}.feed_forward.w1",
            "up": "layers.{i}.feed_forward.w3",
            "down": "layers.{i}.feed_forward.w2",
            "conv": "layers.{i}.conv.conv",
            "conv_before": WeightPart("layers.{i}.conv.in_proj", 0, LFM2_PROJECTION),
            "conv_after": WeightPart("layers.{i}.conv.in_proj", 1, LFM2_PROJECTION),
            "conv_in": WeightPart("layers.{i}.conv.in_proj", 2, LFM2_PROJECTION),
            "conv_out": "layers.{i}.conv.out_proj",
        },
        gguf_top={"final_norm": "token_embd_norm"},
        gguf_layer={
            "conv": "blk.{i}.shortconv.conv",
            "conv_before": WeightPart("blk.{i}.shortconv.in_proj", 0, LFM2_PROJECTION),
            "conv_after": WeightPart("blk.{i}.shortconv.in_proj", 1, LFM2_PROJECTION),
            "conv_in": WeightPart("blk.{i}.shortconv.in_proj", 2, LFM2_PROJECTION),
            "conv_out": "blk.{i}.shortconv.out_proj",
        },
    ),
    # Models that fill masks. Only safetensors: in GGUF they have names of their own.
    ModelFamily(
        "llada",
        ("llada",),
        title="LLaDA",
        masked="own",
        keys=COMMON_KEYS
        | {
            "dim": "d_model",
            "ffn_dim": "mlp_hidden_size",
            "layers": "n_layers",
            "heads": "n_heads",
            "kv_heads": "n_kv_heads",
            "context": "max_sequence_length",
            "activation": "activation_type",
        },
        only=(
            *(("block_type", "llama"), ("layer_norm_type", "rms"), ("rope", True), ("alibi", False)),
            *(("include_bias", False), ("include_qkv_bias", False), ("weight_tying", False)),
            ("attention_layer_norm", False),
        ),
        top={"token_embedding": "wte", "final_norm": "ln_f", "head": "ff_out"},
        layer={
            "attn_norm": "blocks.{i}.attn_norm",
            "q": "blocks.{i}.q_proj",
            "k": "blocks.{i}.k_proj",
            "v": "blocks.{i}.v_proj",
            "o": "blocks.{i}.attn_out",
            "ffn_norm": "blocks.{i}.ff_norm",
            "gate": "blocks.{i}.ff_proj",
            "up": "blocks.{i}.up_proj",
            "down": "blocks.{i}.ff_out",
        },
    ),
    ModelFamily(
        "dream",
        ("Dream",),
        title="Dream",
        masked="next",
        qkv_bias=True,
        defaults={"use_sliding_window": False},
    ),
    _GEMMA2,
    _GEMMA2._replace(
        name="gemma3",
        types=("gemma3_text", "gemma3"),
        title="Gemma 3",
        qk_norm=True,
        only=(("use_bidirectional_attention", False),),
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
        full_every=6,
        local_rope_base=10_000.0,
        gguf_wide_scale_layers=62,
    ),
    _GEMMA2._replace(
        name="gemma4",
        types=("gemma4_text", "gemma4_unified_text", "gemma4"),
        title="Gemma 4",
        qk_norm=True,
        v_norm=True,
        stream_scale=True,
        scale=1.0,
        only=(
            ("use_bidirectional_attention", (None, "vision")),
            ("enable_moe_block", False),
            ("hidden_size_per_layer_input", 0),
        ),
        layer=_GEMMA_LAYER | {"stream_scale": Bare("layers.{i}.layer_scalar")},
        defaults={
            "vocab_size": 262_144,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "hidden_size_per_layer_input": 256,
            "max_position_embeddings": 131_072,
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 512,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1_000_000.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
        norms_from_zero=False,
        full_every=6,
        local_rope_base=10_000.0,
        gguf_wide_scale_layers=None,
    ),
)
FAMILY_BY_TYPE = {type_name: family for family in FAMILIES for type_name in family.types}
# Architectures of GGUF that mean another family where the model has experts.
GGUF_WITH_EXPERTS = {"llama": FAMILY_BY_TYPE["mixtral"]}

# GGUF has one set of names for all families.
GGUF_TOP = {
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "final_norm": "output_norm",
    "head": "output",
}
GGUF_LAYER: dict[str, str | WeightPart] = {
    "attn_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "o": "blk.{i}.attn_output",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "stream_scale": "blk.{i}.layer_output_scale",
    "sinks": "blk.{i}.attn_sinks",
    "attn_post_norm": "blk.{i}.post_attention_norm",
    "ffn_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "ffn_post_norm": "blk.{i}.post_ffw_norm",
}
GGUF_FUSED_LAYER = GGUF_LAYER | {
    name: WeightPart("blk.{i}.attn_qkv", index) for index, name in enumerate("qkv")
}
