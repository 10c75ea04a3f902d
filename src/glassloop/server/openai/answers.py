"""The parts of an answer that OpenAI's endpoints share: usage, log-probabilities, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from glassloop.server.service import Service
from glassloop.trace.run import Run
from glassloop.trace.token import Token


class PromptDetails(BaseModel):
    cached_tokens: int


class UsageAnswer(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage(runs: Sequence[Run], dropped: int = 0) -> dict[str, Any]:
    """Returns the tokens used by runs, less `dropped` ones that are not answered. Samples of one request
    share their prompt, which is counted once."""
    prompts = [run for run in runs if run.sample == 0] or list(runs[:1])
    prompt = sum(len(run.prompt_ids) for run in prompts)
    made = sum(len(run.tokens) for run in runs) - dropped
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(run.cached_tokens for run in prompts)},
    }


def finish_reason(run: Run) -> str:
    """Returns how a run ended in OpenAI's words, of which two apply; `stop_reason` and the run have it
    exactly."""
    return "stop" if run.finish_reason in ("stop", "repetition") else "length"


def headers(runs: Sequence[Run]) -> dict[str, str]:
    return {"x-glassloop-run": ", ".join(run.id for run in runs)}


def logprob(service: Service, token: Token, count: int) -> dict[str, Any]:
    """Returns the log-probabilities of a token and of `count` alternatives: the model's own, which are exact
    and finite whatever the stages did."""
    tokenizer, size = service.llm.tokenizer, service.llm.config.vocab_size
    return {
        "token": token.piece,
        "bytes": list(token.bytes),
        "logprob": token.raw_logprob,
        "top_logprobs": [
            {
                "token": each.text,
                "bytes": list(tokenizer.token_bytes(each.id)) if each.id < tokenizer.vocab_size else [],
                "logprob": each.raw_logprob,
            }
            for each in token.alternatives[:count]
            if each.id < size
        ],
    }
