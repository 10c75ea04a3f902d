"""What messages say of a file that cannot be read here: what is missing, by its name, and what to do instead.

`glassloop models check` says it too, before it tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassloop.model.families import FAMILIES
from glassloop.ops.quant import FORMAT_BY_GGUF_ID, FORMATS
from glassloop.util.shown import shown

# GGUF's tensor types that are not read here, by their numbers; some are no longer written.
_NOT_READ = {4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K"}
_NOT_READ |= {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
_NOT_READ |= {31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"}
_NOT_READ |= {36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}
GGUF_TYPES: Mapping[int, str] = _NOT_READ | {each.gguf_id: each.name for each in FORMAT_BY_GGUF_ID.values()}
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
    name = GGUF_TYPES.get(number)
    kind = f"{number}, which GGUF has no name for" if name is None else name
    return (
        f"has type {kind}; types {', '.join(FORMATS)} are read:"
        f" get a file of the same model in one of them (Q4_K_M, Q8_0), or {UPSTREAM}"
    )


# Keys that say how many experts a layer has, in `config.json` and in GGUF metadata (after the architecture).
EXPERTS_JSON = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_GGUF = "expert_count"


def experts_of(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Returns the key and the number of experts of a `config.json` that describes a mixture of experts."""
    for key in EXPERTS_JSON:
        count = config.get(key)
        if type(count) is int and count > 1:
            return key, count
    return None


def mixture_of_experts(count: int) -> str:
    """Says what to do about a mixture of experts of a family whose dense models alone are read."""
    return (
        f"is {count}: mixtures of experts of this family are not read; get one of its dense models, or"
        f" {UPSTREAM}"
    )


PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def pickle_only(name: str) -> str:
    """Says what to do about weights in a pickle."""
    return (
        f"{name} is a pickle, which can run code when it is opened, so it is not read; get the safetensors or"
        " GGUF files of the model, or convert it where you trust it: AutoModelForCausalLM.from_pretrained(IN)"
        ".save_pretrained(OUT) of transformers writes safetensors"
    )
