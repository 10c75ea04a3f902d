"""The kinds of servers that are known, by the name that they give in their list of models: which options they
take beyond OpenAI's, and how they continue a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError

# Options of `Sampling` that every server takes, under the same name.
_OPENAI = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
# Options that are about the record, or that this program handles itself.
_OWN = ("n", "seed", "max_tokens", "stop", "timeout", "logprobs", "prompt_logprobs", "json_schema")
_ALIKE = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")
_LLAMA = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"}


@dataclass(frozen=True)
class ServerKind:
    """A kind of server."""

    name: str
    # Options beyond OpenAI's: the name in `Sampling`, and that in a request. They are always sent, since the
    # server's own default may be another one.
    options: Mapping[str, str]
    # The fields by which the last message of a conversation, which is the assistant's, is continued; None if
    # that is not known to work.
    continues: Mapping[str, bool] | None = None
    formats: bool = True  # whether response_format takes a JSON schema
    echoes: bool = True  # whether the log-probabilities of an echoed prompt, if there are any, are right
    scores_chats: bool = False  # whether it has vLLM's prompt_logprobs and /tokenize


_OTHER = ServerKind("", {})
_KINDS = {
    "glassloop": ServerKind(
        "glassloop",
        {
            each.name: each.name
            for each in fields(Sampling)
            if each.name in (*_ALIKE, "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold")
            or each.name in ("epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "include_stop")
            or each.name.startswith(("dry_", "mirostat_"))
        },
        {"continue_final_message": True},
        scores_chats=True,
    ),
    "vllm": ServerKind(
        "vllm",
        {**{name: name for name in _ALIKE}, "include_stop": "include_stop_str_in_output"},
        {"continue_final_message": True, "add_generation_prompt": False},
        scores_chats=True,
    ),
    "llamacpp": ServerKind("llamacpp", {**_LLAMA, "typical_p": "typical_p", "ignore_eos": "ignore_eos"}, {}),
    "me": ServerKind("llama-cpp-python", _LLAMA, formats=False, echoes=False),
    "library": ServerKind("ollama", {}, {}),
}


def kind_of(owner: object) -> ServerKind:
    """Returns the kind of a server whose models have this `owned_by`."""
    return _KINDS.get(owner, _OTHER) if isinstance(owner, str) else _OTHER


def check_options(kind: ServerKind, sampling: Sampling) -> None:
    """Raises if an option is given that the server does not take."""
    taken = {*_OPENAI, *_OWN, *kind.options}
    usual = Sampling()
    for each in fields(Sampling):
        if each.name not in taken and getattr(sampling, each.name) != getattr(usual, each.name):
            server = kind.name or "the upstream server"
            raise SamplingError.about(
                each.name, f"is given; {server} is not known to take it, so it cannot be passed on"
            )
    if sampling.json_schema is not None and not kind.formats:
        raise SamplingError.about("json_schema", f"is given; {kind.name} takes no schema in OpenAI's form")


def options_for(kind: ServerKind, sampling: Sampling, *, chat: bool) -> dict[str, Any]:
    """Returns the options of a request as the server takes them, except its length and its seed."""
    body = {name: getattr(sampling, name) for name in _OPENAI}
    body |= {theirs: getattr(sampling, name) for name, theirs in kind.options.items()}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.json_schema is not None:
        if not chat:
            raise SamplingError.about(
                "json_schema", "is given for a text; the upstream takes it in a chat only"
            )
        schema = {"name": "answer", "schema": sampling.to_dict()["json_schema"], "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
