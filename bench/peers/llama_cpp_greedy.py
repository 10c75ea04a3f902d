"""Greedy tokens of llama.cpp, for `bench/exported.py`: one JSON object on standard input ({"model": PATH,
"prompts": [...], "tokens": N}), one on standard output: {"version", "prompts": ids of each prompt as
llama.cpp cuts it, "tokens": generated ids, "margins": how far the best logit was ahead of the second}.
"""

from __future__ import annotations

import json
import sys

import llama_cpp
import numpy as np


def main() -> None:
    given = json.load(sys.stdin)
    llm = llama_cpp.Llama(
        given["model"],
        n_ctx=given["context"],
        n_threads=1,
        n_threads_batch=1,
        logits_all=False,
        verbose=False,
    )
    found = {"version": llama_cpp.__version__, "prompts": [], "tokens": [], "margins": []}
    for prompt in given["prompts"]:
        ids = llm.tokenize(prompt.encode(), add_bos=False, special=False)
        llm.reset()
        llm.eval(ids)
        made, margins = [], []
        for _ in range(given["tokens"]):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (llm.n_vocab(),))
            second, first = np.argpartition(logits, -2)[-2:]
            first, second = sorted((int(first), int(second)), key=lambda each: -logits[each])
            made.append(first)
            margins.append(float(logits[first] - logits[second]))
            llm.eval([first])
        found["prompts"].append(ids)
        found["tokens"].append(made)
        found["margins"].append(margins)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
