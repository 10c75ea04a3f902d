"""`python -m bench.thinking.constrained`: IFEval's instructions that a grammar can express, greedy, with and
without that grammar.

Only prompts with a single instruction are used, so that the grammar is the whole task. The check is the
strict one; both ways have the same prompts and are compared by McNemar's exact test.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from glassloop import LLM, Sampling
from glassloop.evaluate.analyse import Outcome
from glassloop.evaluate.find import find_task
from glassloop.evaluate.report import figures_of, row_of
from glassloop.evaluate.task import Item
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.search.verify.ifeval import IFEval

# The grammar of each kind of instruction, as options of `Sampling`.
GRAMMARS: Mapping[str, dict[str, Any]] = {
    "detectable_format:json_format": {"json_schema": {"type": "object"}},
    "detectable_format:constrained_response": {
        "choice": [f"My answer is {answer}." for answer in ("yes", "no", "maybe")]
    },
    "startend:quotation": {"regex": '"[^"]+"'},
    "detectable_format:title": {"regex": r"<<[^\n<>]+>>\n(.|\n)+"},
    "punctuation:no_comma": {"regex": "[^,]+"},
    "change_case:english_lowercase": {"regex": "[^A-Z]+"},
    "change_case:english_capital": {"regex": "[^a-z]+"},
    "combination:two_responses": {"regex": r"[^*]+\*{6}[^*]+"},
}


def main() -> None:
    options = _options()
    items = [item for item in find_task("ifeval").items if _kind(item) in GRAMMARS][: options.limit]
    with LLM(options.model, options.ops, most_running=options.streams) as llm:
        free = _answers(llm, items, options.max_tokens, constrained=False)
        held = _answers(llm, items, options.max_tokens, constrained=True)
    results = {"greedy": free, "greedy with the grammar": held}
    rows = [row_of(name, found, None) for name, found in results.items()]
    figures = figures_of("ifeval, instructions with a grammar", options.model, rows, results)
    print(figures.text)
    for kind in GRAMMARS:
        mine = [item.id for item in items if _kind(item) == kind]
        counts = [sum(found[key].correct for key in mine) for found in (free, held)]
        print(f"{kind}: {counts[0]} and {counts[1]} of {len(mine)}")
    print(json.dumps(figures.json))


def _kind(item: Item) -> str:
    verify = item.verify
    assert isinstance(verify, IFEval)
    return verify.instructions[0].kind if len(verify.instructions) == 1 else ""


def _answers(llm: LLM, items: list[Item], tokens: int, *, constrained: bool) -> dict[str, Outcome]:
    prompts, options = [], []
    for item in items:
        assert isinstance(item.question, str)
        prompts.append(llm.tokenizer.encode_chat([{"role": "user", "content": item.question}]))
        grammar = GRAMMARS[_kind(item)] if constrained else {}
        options.append(Sampling(temperature=0, max_tokens=tokens, seed=0, **grammar))
    runs = llm.generate(prompts, options)
    found = {}
    for item, run in zip(items, runs, strict=True):
        if run.error is not None:
            raise run.error
        assert item.verify is not None
        found[item.id] = Outcome(item.verify(run.text).passed, len(run.tokens))  # type: ignore[union-attr]
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--ops")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--limit", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
