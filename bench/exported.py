"""`python -m bench.exported FOLDER [--prompts FILE]`: whether a trained model that is exported to GGUF, as
float and quantized, gives the same greedy tokens in llama.cpp, in `LLM` and in transformers.

Every engine cuts the prompts itself. transformers reads a folder in the same format where it is a float one,
and else the GGUF file; it expands the weights and computes in float32. `LLM` and llama.cpp compute products
with quantized weights in whole numbers, so transformers may differ where two tokens are almost equally
likely: the margin is printed, how far llama.cpp's best logit was ahead of its second at the first token that
differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.catalog import LLAMA, ROOT
from bench.environments import python_for
from glassloop import LLM, Sampling
from glassloop.train.convert import export

_PROMPTS = ["The ", "I have ", "It was a dark night, and", "“What is it?” said", "He looked at", "My dear"]


def main() -> None:
    given = _options()
    prompts = given.prompts.read_text(encoding="utf-8").splitlines() if given.prompts else _PROMPTS
    facts = []
    for format in given.formats:
        with TemporaryDirectory() as place:
            file = export(given.folder, Path(place) / "model.gguf", format)
            peer = file if format in ("q8", "q4") else export(given.folder, Path(place) / "folder", format)
            facts.append({"format": format, **_compare(given, file, peer, prompts)})
        print(f"{format}: {facts[-1]['line']}", flush=True)
    print(json.dumps(facts))


def _compare(given: argparse.Namespace, file: Path, readable: Path, prompts: list[str]) -> dict[str, Any]:
    """Compares the engines on one file; `readable` is the same model in a form that transformers reads."""
    peer = _llama_cpp(given, file, prompts)
    with LLM(str(file), draft=False) as llm:
        sampling = Sampling(temperature=0, max_tokens=given.tokens, ignore_eos=True)
        runs = llm.generate(prompts, sampling)
        ours = [run.token_ids for run in runs]
        cut = [llm.tokenizer.encode(prompt) for prompt in prompts]
    theirs = _transformers(readable, cut, given.tokens)
    cuts = sum(list(one) == other for one, other in zip(cut, peer["prompts"], strict=True))
    counts, apart = {}, []
    for name, found in (("LLM", ours), ("transformers", theirs)):
        counts[name] = 0
        for one, other, margins in zip(found, peer["tokens"], peer["margins"], strict=True):
            unlike = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
            counts[name] += not unlike
            apart += [{"with": name, "token": at, "margin": margins[at]} for at in unlike[:1]]
    line = (
        f"{len(prompts)} prompts, {given.tokens} tokens each; cut alike: {cuts}; the same tokens as llama.cpp"
    )
    line += f" {peer['version']}: LLM {counts['LLM']}, transformers {counts['transformers']}"
    for each in apart:
        line += f"; {each['with']} differs at {each['token']}, margin {each['margin']:.2g}"
    return {"line": line, "prompts": len(prompts), "cut_alike": cuts, **counts, "apart": apart}


def _llama_cpp(given: argparse.Namespace, file: Path, prompts: list[str]) -> dict[str, Any]:
    python = given.llama_python or python_for(LLAMA)
    question = {"model": str(file), "prompts": prompts, "tokens": given.tokens, "context": given.context}
    done = subprocess.run(
        [python, "-P", ROOT / "bench" / "peers" / "llama_cpp_greedy.py"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"llama.cpp: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _transformers(path: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM

    place, options = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options)
    made = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(tokens):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        made.append(ids[len(prompt) :])
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="The model that a training has written.")
    parser.add_argument("--formats", nargs="+", default=["f32", "f16", "bf16", "q8", "q4"])
    parser.add_argument("--prompts", type=Path, help="A file with a prompt in each line.")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--llama-python", help="The interpreter that has llama-cpp-python.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
