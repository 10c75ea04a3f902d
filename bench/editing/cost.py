"""What an edit costs: the rows of the forward pass that an accepted edit of a 12-token span in a text of 200
takes, as a multiple of its own rows and those of the text after it.

    python -m bench.editing.cost

The rows are counted by the engine. `one` draws one proposal and scores all that follows; `rerank` draws 16,
scores each with a window of 32 tokens, and the rest of the text for the winner alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.editing.data import BOOKS, paragraphs
from glassloop import LLM, Sampling
from glassloop.edit.infill import rewrite

LENGTH, SPAN = 200, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--ops", default=None)
    parser.add_argument("--count", type=int, default=8, help="paragraphs")
    parser.add_argument("--books", type=Path, required=True, help=BOOKS)
    options = parser.parse_args()
    llm = LLM(options.model, ops=options.ops, draft=False)
    made: dict[str, list[float]] = {"one": [], "rerank": []}
    for item, paragraph in enumerate(paragraphs(options.books, options.count, 1000, 1600)):
        ids = llm.tokenizer.encode_inside(paragraph["text"])[:LENGTH]
        start = (20, 60, 100, 140)[item % 4]
        parts = (ids[:start], ids[start : start + SPAN], ids[start + SPAN :])
        before, old, after = map(llm.tokenizer.decode, parts)
        text, span = before + old + after, (len(before), len(before + old))
        for name, candidates, window in (("one", 1, None), ("rerank", 16, 32)):
            # The text itself, as it is, is known and in the cache: it is what is edited.
            rewrite(llm, text, span, Sampling(seed=item), candidates=1, tokens=SPAN, window=0)
            rows = llm.engine.loop.counters.rows
            edit = rewrite(
                llm, text, span, Sampling(seed=1000 + item), candidates=candidates, tokens=SPAN, window=window
            )
            used = llm.engine.loop.counters.rows - rows
            base = sum(map(len, (llm.tokenizer.encode_inside(old), llm.tokenizer.encode_inside(after))))
            used -= base + 1  # scoring the old text, which every edit of it shares
            accepted = edit.accepted[0]
            own = len(accepted.ids) + len(llm.tokenizer.encode_inside(after))
            made[name].append(used / own)
    means = {name: sum(values) / len(values) for name, values in made.items()}
    for name, values in made.items():
        print(f"{name:7} {means[name]:.2f} times its own rows and its suffix (at most {max(values):.2f})")
    print(json.dumps({"mean": means, "most": {name: max(values) for name, values in made.items()}}))


if __name__ == "__main__":
    main()
