"""How families with experts differ, as data: the rule by which a token chooses, and where files say the rest.

A family of `families.py` that has experts names one of these. `config_experts.py` reads files by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from glassloop.ops.routing import Gating, Scores


class ExpertPart(NamedTuple):
    """A weight of an expert in a file: a tensor of its own, or a part of one.

    A name without {e} is of a tensor that holds all experts, [experts, out, in], each with `of` matrices."""

    name: str
    place: int = 0
    of: int = 1
    interleaved: bool = False  # the rows of the matrices are in turn, not one matrix after the other
    transposed: bool = False  # [experts, in, out]
    suffixes: tuple[str, str] = (".weight", ".bias")


class ExpertFamily(NamedTuple):
    scores: Scores = "softmax"
    normalized: bool | None = None  # None: as the file says in `norm_topk_prob`
    gguf_normalized: bool = False  # and what it is where GGUF does not say it
    epsilon: float = 0.0
    choice_bias: bool = False
    router_bias: bool = False
    bias: bool = False
    gating: Gating = Gating()
    weigh_input: bool = False
    shared_gate: bool = False

    # How config.json says the rest: the first of these keys that it has.
    ffn_dim: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    shared_count: str | int = 0  # shared experts, each as large as the others: a key, or the number
    shared_dim: str | None = None  # the key of their size in all, in place of a number of them

    # What safetensors call the weights, beside those of the other layers.
    layer: Mapping[str, str | ExpertPart] = {}


def _names(
    block: str, router: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> dict[str, str | ExpertPart]:
    at = f"layers.{{i}}.{block}."
    return {
        "router": at + router,
        "experts.gate": ExpertPart(f"{at}experts.{{e}}.{gate}"),
        "experts.up": ExpertPart(f"{at}experts.{{e}}.{up}"),
        "experts.down": ExpertPart(f"{at}experts.{{e}}.{down}"),
    }


def _shared(name: str) -> dict[str, str | ExpertPart]:
    return {f"shared.{each}": f"layers.{{i}}.mlp.{name}.{each}_proj" for each in ("gate", "up", "down")}


def _choice(name: str) -> dict[str, str | ExpertPart]:
    return {"choice": ExpertPart(f"layers.{{i}}.{name}", suffixes=("", ""))}


_QWEN = _names("mlp", "gate")
QWEN3_MOE = ExpertFamily(gguf_normalized=True, layer=_QWEN)
QWEN2_MOE = ExpertFamily(
    shared_dim="shared_expert_intermediate_size",
    shared_gate=True,
    layer=_QWEN | _shared("shared_expert") | {"shared_gate": "layers.{i}.mlp.shared_expert_gate"},
)
MIXTRAL = ExpertFamily(
    normalized=True,
    ffn_dim=("intermediate_size",),
    layer=_names("block_sparse_moe", "gate", "w1", "w3", "w2"),
)

OLMOE = ExpertFamily(ffn_dim=("intermediate_size",), layer=_QWEN)
# Each row of the first matrix has gate and up in turn.
_GPT_OSS = "layers.{i}.mlp.experts."
_WHOLE = ("", "_bias")
GPT_OSS = ExpertFamily(
    scores="chosen",
    router_bias=True,
    bias=True,
    gating=Gating(limit=7.0, slope=1.702, shift=1.0),
    ffn_dim=("intermediate_size",),
    layer={
        "router": "layers.{i}.mlp.router",
        "experts.gate": ExpertPart(f"{_GPT_OSS}gate_up_proj", 0, 2, True, True, _WHOLE),
        "experts.up": ExpertPart(f"{_GPT_OSS}gate_up_proj", 1, 2, True, True, _WHOLE),
        "experts.down": ExpertPart(f"{_GPT_OSS}down_proj", transposed=True, suffixes=_WHOLE),
    },
)
GLM4_MOE = ExpertFamily(
    scores="sigmoid",
    epsilon=1e-20,
    gguf_normalized=True,
    choice_bias=True,
    shared_count="n_shared_experts",
    layer=_QWEN | _shared("shared_experts") | _choice("mlp.gate.e_score_correction_bias"),
)
MINIMAX_M2 = ExpertFamily(
    scores="sigmoid",
    normalized=True,
    choice_bias=True,
    ffn_dim=("intermediate_size",),
    layer={**MIXTRAL.layer, **_choice("block_sparse_moe.e_score_correction_bias")},
)
_GRANITE = "layers.{i}.block_sparse_moe."
GRANITE_MOE = ExpertFamily(
    scores="chosen",
    ffn_dim=("intermediate_size",),
    layer={
        "router": f"{_GRANITE}router.layer",
        "experts.gate": ExpertPart(f"{_GRANITE}input_linear", 0, 2),
        "experts.up": ExpertPart(f"{_GRANITE}input_linear", 1, 2),
        "experts.down": ExpertPart(f"{_GRANITE}output_linear"),
    },
)
ERNIE4_5_MOE = ExpertFamily(
    normalized=True,
    epsilon=1e-12,
    choice_bias=True,
    shared_count="moe_num_shared_experts",
    layer=_QWEN | _shared("shared_experts") | _choice("mlp.moe_statics.e_score_correction_bias"),
)
HUNYUAN_MOE = ExpertFamily(
    normalized=True,
    ffn_dim=("intermediate_size",),
    shared_count=1,
    layer=_names("mlp", "gate.wg") | _shared("shared_mlp"),
)

# GGUF has one set of names for all families.
GGUF_EXPERTS: dict[str, str | ExpertPart] = {
    "router": "blk.{i}.ffn_gate_inp",
    "choice": "blk.{i}.exp_probs_b",
    **{f"experts.{each}": ExpertPart(f"blk.{{i}}.ffn_{each}_exps") for each in ("gate", "up", "down")},
    **{f"shared.{each}": f"blk.{{i}}.ffn_{each}_shexp" for each in ("gate", "up", "down")},
    "shared_gate": "blk.{i}.ffn_gate_inp_shexp",
}
