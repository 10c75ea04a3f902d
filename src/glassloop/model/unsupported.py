"""What messages say of a file that cannot be read here: what is missing, by its name, and what to do instead.

`glassloop models check` says it too, before it tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassloop.model.families import FAMILIES
from glassloop.util.shown import shown

# The names of GGUF's tensor types in the order of their numbers, with those that are no longer written.
_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS"
    " IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0"
    " IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0 Q2_0"
)
GGUF_TYPES: Mapping[int, str] = dict(enumerate(_NAMES.split()))
UPSTREAM = "run it in llama.cpp or vLLM and look at it here with --upstream URL"


def family_list() -> str:
    """Returns the families that can be read, as the README and the documentation list them."""
    titles = sorted((family.title or family.name for family in FAMILIES), key=str.casefold)
    return ", ".join(titles)


def unknown_family(value: object) -> str:
    """Says what to do about a family that is not in the table."""
    return f"is {shown(value)}; the families {family_list()} are read: {UPSTREAM}"


def unknown_type(number: int) -> str:
    """Says what to do about a tensor of a GGUF type that is not read here."""
    from glassloop.ops.quant import FORMATS

    name = GGUF_TYPES.get(number)
    kind = f"{number}, which GGUF has no name for" if name is None else name
    return (
        f"has type {kind}; types {', '.join(FORMATS)} are read:"
        f" get a file of the same model in one of them (Q4_K_M, Q8_0), or {UPSTREAM}"
    )


# Keys that say how many experts a layer has, in `config.json` and in GGUF metadata (after the architecture).
_EXPERTS_JSON = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_GGUF = "expert_count"


def experts_of(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Returns the key and the number of experts of a `config.json` that describes a mixture of experts."""
    for key in _EXPERTS_JSON:
        count = config.get(key)
        if type(count) is int and count > 1:
            return key, count
    return None


def mixture_of_experts(count: int) -> str:
    """Says what to do about a mixture of experts."""
    return (
        f"is {count}: mixtures of experts are not read; get a dense model of the same family, or {UPSTREAM}"
    )


PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def pickle_only(name: str) -> str:
    """Says what to do about weights in a pickle."""
    return (
        f"{name} is a pickle, which can run code when it is opened, so it is not read; get the safetensors or"
        " GGUF files of the model, or convert it where you trust it: AutoModelForCausalLM.from_pretrained(IN)"
        ".save_pretrained(OUT) of transformers writes safetensors"
    )
