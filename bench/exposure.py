"""Measures exposure bias and what on-policy distillation does to it: `python -m bench.exposure FOLDER
--teacher MODEL --data TOKENS`. The default sizes are for a GPU.

A student learns from the teacher on the data. Then it is trained further, for the same number of steps, in
three ways at the same time: on the data, on texts that the teacher writes, and on texts that it writes
itself. Each student is measured as soon as it is trained, and FOLDER/exposure.json and exposure.svg have all
that are measured so far.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.train.config import TrainConfig, config_text
from glassloop.train.network import Network
from glassloop.train.research.data_prompts import spread_prompts
from glassloop.train.research.exposure import (
    Exposure,
    exposure_svg,
    exposure_text,
    load_network,
    measure_exposure,
)
from glassloop.train.sample_text import after_end, sample_batch
from glassloop.train.token_files import TokenFiles, TokenWriter
from glassloop.train.train import train
from glassloop.util.files import write_text


def write_texts(
    teacher: Network, files: TokenFiles, folder: Path, count: int, prompt: int, length: int, batch: int
) -> Path:
    """Writes token files of texts that a model writes after prompts of the data. Prompts are not learned."""
    prompts = spread_prompts(files, count, prompt, seed=1)
    ends = () if files.eos_id is None else (files.eos_id,)
    writer = TokenWriter(folder, teacher.config.vocab_size)
    for at in range(0, count, batch):
        ids = sample_batch(teacher, prompts[at : at + batch], length - prompt, seed=10_000 + at)
        kept = (~after_end(ids, ends)).sum(1).tolist()
        for row, size in zip(ids.cpu().numpy(), kept, strict=True):
            writer.add(row[:size], [place >= prompt for place in range(size)])
    return writer.finish().folder


def _start(folder: Path, config: TrainConfig) -> tuple[Path, subprocess.Popen[bytes]]:
    """Starts a run in a process of its own and returns its folder and the process."""
    settings = folder.with_suffix(".toml")
    write_text(settings, config_text(config))
    command = [sys.executable, "-m", "glassloop.train", "run", str(folder), "--config", str(settings)]
    return folder, subprocess.Popen([*command, "--quiet"], stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.exposure", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--data", required=True, type=Path, help="token files of the teacher's tokenizer")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=800, help="steps on the data")
    parser.add_argument("--further", type=int, default=150, help="steps of each further training")
    parser.add_argument("--texts", type=int, default=2048, help="texts that the teacher writes")
    parser.add_argument("--measured", type=int, default=256, help="texts of each measurement")
    given = parser.parse_args()
    device, prompt, began = "cuda" if torch.cuda.is_available() else "cpu", 8, time.monotonic()

    def say(line: str) -> None:
        print(f"[exposure] {time.monotonic() - began:.1f} s: {line}", flush=True)

    base = TrainConfig(
        data=(str(given.data),), teacher=given.teacher,
        layers=given.layers, dim=given.dim, heads=max(1, given.dim // 64), length=given.length,
        batch=given.batch, steps=given.steps, lr=1e-3, warmup=50, borders=False,
        validation_share=0.02, validate_every=0, checkpoint_every=10**6, sample_tokens=1,
    )  # fmt: skip
    first = train(base, given.folder / "student", quiet=True)
    say(f"student: {first.steps} steps, validation loss {first.validation:.4f}")
    more = replace(
        base, model=str(first.folder), steps=given.further, lr=3e-4, warmup=10, validation_share=0.0
    )
    alone = replace(more, on_policy=1.0, on_policy_prompt=prompt)
    own, data = _start(given.folder / "own-texts", alone), _start(given.folder / "data", more)

    files, model = TokenFiles(given.data), ModelFiles(fetch(given.teacher))
    writer = Network(model.config, model.weights, device=device, bf16=device == "cuda")
    texts = write_texts(
        writer, files, given.folder / "texts", given.texts, prompt, given.length, min(512, given.texts)
    )
    del writer
    say(f"the teacher wrote {TokenFiles(texts).tokens:,} tokens")
    taught = replace(more, data=(str(texts),), packing="whole", borders=True)
    theirs = _start(given.folder / "teachers-texts", taught)

    teacher = load_network(given.teacher, device)
    prompts = spread_prompts(files, given.measured, prompt, seed=2)
    ends = () if files.eos_id is None else (files.eos_id,)
    found: dict[str, Exposure] = {}

    def measure(name: str, path: Path) -> None:
        student = load_network(path, device)
        found[name] = measure_exposure(teacher, student, prompts, given.length - prompt, ends=ends, batch=128)
        say(exposure_text({name: found[name]}))
        facts = {key: each.facts() for key, each in found.items()}
        write_text(given.folder / "exposure.json", json.dumps(facts))
        write_text(given.folder / "exposure.svg", exposure_svg(found))

    measure("student", first.folder)
    for name, (place, process) in {"data": data, "the teacher's texts": theirs, "own texts": own}.items():
        if process.wait() == 0:
            measure(f"further on {name}", place / "model")
        else:
            say(f"further on {name}: exit status {process.returncode}")
    say("done")


if __name__ == "__main__":
    main()
