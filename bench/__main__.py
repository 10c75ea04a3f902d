"""`python -m bench`: runs the rounds, cold starts, memory and accuracy of each model, and prints the tables
and a last line of JSON.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from bench import accuracy, documentation, machine, report, rounds
from bench.catalog import LLAMA, OURS, PEERS, Peer
from bench.english import english, fingerprint
from bench.process import hold_to
from bench.workloads import ACCURACY, WORKLOADS
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.native.library import wanted_threads

MODELS = (DEFAULT_MODEL, "gemma-3-270m")


def main() -> None:
    options = read_options()
    if options.isa:
        hold_to(options.isa)
    about: dict[str, Any] = {
        **machine.describe(options.threads),
        "date": date.today().isoformat(),
        "rounds": options.rounds,
        "isa": options.isa,
    }
    peers = [PEERS[name] for name in options.peers]
    speed = machine.ReadSpeed(options.threads)
    runs: list[rounds.Measured] = []
    try:
        for model in options.models:
            run_model(model, peers, options, speed, runs)
    except KeyboardInterrupt:
        about["stopped"] = True  # what was measured so far is shown
    rounds.say("")
    text = report.report(about, runs, DEFAULT_MODEL)
    print(text)
    if options.write_docs and "stopped" not in about:
        documentation.write(text)
    if options.json:
        options.json.write_text(json.dumps(report.data(about, runs, samples=True), indent=1) + "\n")
    print(json.dumps(report.data(about, runs, samples=False)))


def run_model(
    model: str,
    peers: list[Peer],
    options: argparse.Namespace,
    speed: machine.ReadSpeed,
    runs: list[rounds.Measured],
) -> None:
    """Measures everything that was requested for one model. The result is added to `runs` before the first
    measurement, so that it is shown if the run is stopped.
    """
    path = fetch(model)
    files = ModelFiles(path)
    tokenizer = files.tokenizer()
    text = english()
    ids = tokenizer.encode(text)
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    ids = ids if bos is None else ids[1:]
    fresh = rounds.FreshIds(ids)
    # Each weight is read once per token, except an embedding that is not also the head: one row is read.
    read = [t for name, t in files.weights.items() if name != "token_embedding.weight" or files.config.tied]
    measured = rounds.Measured(model, path.name, sum(tensor.data.nbytes for tensor in read))
    runs.append(measured)
    chosen = [workload for workload in WORKLOADS.values() if workload.name in options.workloads]
    with rounds.loaded(peers, path, options.threads, measured) as engines:
        rounds.measure(engines, chosen, options.rounds, fresh, speed, measured)
    if "cold-start" in options.workloads:
        rounds.cold_starts(peers, path, options.threads, options.rounds, measured)
    if "memory" in options.workloads:
        rounds.memory(peers, path, options.threads, fresh, measured)
    if ACCURACY in options.workloads:
        able = [peer for peer in peers if peer in (OURS, LLAMA) and peer.name not in measured.absent]
        some = ids[: options.accuracy_tokens]
        result = accuracy.compare(
            able, path, options.threads, some, bos, files.config.vocab_size, measured.said
        )
        measured.accuracy = {**result, "text": f"Python's reference, {fingerprint(text)}"}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench", description="Glassloop beside other engines.")
    kinds = [*WORKLOADS, ACCURACY]
    parser.add_argument("--quick", action="store_true", help="2 rounds, 1,000 tokens of accuracy")
    parser.add_argument("--rounds", type=int, help="counted rounds (7)")
    parser.add_argument("--models", type=_names(None), default=list(MODELS), help=",".join(MODELS))
    parser.add_argument("--peers", type=_names(list(PEERS)), default=list(PEERS), help=",".join(PEERS))
    parser.add_argument("--workloads", type=_names(kinds), default=kinds, help=",".join(kinds))
    parser.add_argument("--threads", type=int, default=wanted_threads(), help="for every engine")
    parser.add_argument("--isa", choices=["avx2"], help="limit engines to it, where possible")
    parser.add_argument("--accuracy-tokens", type=int, help="tokens of English text (20,000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.accuracy_tokens = options.accuracy_tokens or (1000 if options.quick else 20_000)
    return options


def _names(known: list[str] | None) -> Any:
    """Returns a parser of comma-separated names that rejects unknown ones."""

    def names(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",") if name.strip()]
        for name in given:
            if known is not None and name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return given

    return names


if __name__ == "__main__":
    main()
