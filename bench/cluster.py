"""`python -m bench.cluster`: replicas on a Ray of this machine against one engine, and routing by prefix
against routing by turns. Prints both and a last line of JSON. Needs the extra `ray`.

Throughput: one engine with all cores, and N replicas that share them, take turns. First each replica has as
many streams as the one engine, so that batches have the same size; then all replicas together have as many.
Ray is started for each turn of the replicas and ended after it: its processes need a part of a core even when
they have nothing to do, which one engine alone does not have to share.

Routing: several chats of several turns each, on three replicas. What counts is the share of the tokens of
prompts that a replica had in its cache. Without memory pressure every replica comes to hold every chat, and
routing by turns finds part of each by chance; with it, a replica can hold the chats of one third alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import count, pairwise
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from bench.machine import describe
from bench.statistics import ratio
from glassloop import LLM, Run, Sampling
from glassloop.cluster.board import Board
from glassloop.cluster.cluster_model import ClusterModel
from glassloop.cluster.messages import Route
from glassloop.cluster.options import AppOptions, EngineOptions, threads_of_each
from glassloop.cluster.start import engines
from glassloop.engine.follow import complete
from glassloop.engine.request import Request
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.ops import default_threads
from glassloop.server.operation.settings import ServerSettings

TOKENS = 96
QUESTIONS = (
    "Tell me about a town by the sea, in a few sentences.",
    "Who lives there?",
    "What do they eat in winter?",
    "Which feast do they hold, and when?",
    "How does one get there by train?",
    "What would you see first?",
)
SYSTEM = (
    "You are a guide who knows every town of the coast, its people, its feasts and its roads. Answer in a few"
    " short sentences, in plain words. Name the season if it matters. Say so if you do not know something,"
    " and never invent a road, a boat or a train that nobody has told you of. Prices are in crowns; distances"
    " in hours on foot. If the guest asks for a meal, name one dish and what is in it; if the guest asks for"
    " a room, name one house and who keeps it. Do not speak of politics. End with a question of your own."
)
Complete = Callable[[Request], Run]


def main() -> None:
    options = read_options()
    made: dict[str, Any] = {
        "machine": describe(default_threads()),
        "replicas": options.replicas,
        "streams": options.streams,
    }
    for name, measure in {"throughput": throughput, "routing": routing}.items():
        if options.only in (None, name):
            made[name] = measure(options)
    print(json.dumps(made))


# ── throughput ─────────────────────────────────────────────────────────────────────────────────────────────


def throughput(options: argparse.Namespace) -> dict[str, Any]:
    """Returns tokens per second of one engine and of replicas, with as many streams for each and in all."""
    replicas, streams = options.replicas, options.streams
    clients = {
        "one engine": streams,
        "replicas, as many for each": replicas * streams,
        "replicas, as many in all": streams,
    }
    one, *others = clients
    found: dict[str, list[float]] = {name: [] for name in clients}
    with LLM(options.model) as llm:

        def alone(request: Request) -> Run:
            complete(llm.engine, [request], progress=False)
            return request.runs[0]

        for _ in range(options.rounds):
            found[one].append(tokens_per_second(llm, alone, streams, options.waves))
            with cluster(options.model, replicas) as engine:
                for name in others:
                    speed = tokens_per_second(engine, engine.complete, clients[name], options.waves)
                    found[name].append(speed)
        last = tokens_per_second(llm, alone, streams, options.waves)
    # Replicas are compared with the mean of one engine before and after them: the machine changes with time.
    base = found[one] = [(before + after) / 2 for before, after in pairwise([*found[one], last])]
    print(f"{'':28} {'streams':>8} {'tokens/s':>9}  against one engine")
    for name, speeds in found.items():
        print(f"{name:28} {clients[name]:8} {median(speeds):9.0f}  {ratio(speeds, base):.2f}")
    return {
        name: {"tokens_per_second": speeds, "ratio": ratio(speeds, base)} for name, speeds in found.items()
    }


def tokens_per_second(maker: Any, compute: Complete, clients: int, waves: int) -> float:
    """Returns the median over waves of requests, one of each client. Another wave before them warms up."""
    return median([_wave(maker, compute, clients, number) for number in range(1 + waves)][1:])


def _wave(maker: Any, compute: Complete, clients: int, number: int) -> float:
    sampling = Sampling(seed=number, temperature=0.8, max_tokens=TOKENS, ignore_eos=True)
    requests = [
        maker.prepare(f"Round {number}, client {client}. Once upon a time, in a small town,", sampling)
        for client in range(clients)
    ]
    began = perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        runs = list(pool.map(compute, requests))
    return sum(len(run.tokens) for run in runs) / (perf_counter() - began)


# ── routing ────────────────────────────────────────────────────────────────────────────────────────────────


class Workload(NamedTuple):
    """Chats on three replicas. Each turn has all that was said before as its prompt."""

    chats: int
    kv_memory: str  # of each replica
    shares_system: bool  # whether all chats have one long system prompt, or each a short one of its own


WORKLOADS = (
    Workload(9, "256MB", False),
    Workload(24, "256MB", False),
    Workload(24, "64MB", False),
    Workload(24, "256MB", True),
    Workload(24, "64MB", True),
)


def routing(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the share of cached tokens of prompts with each way of routing, for each workload."""
    print(
        f"{'chats':>6} {'KV memory':>10} {'system prompt':>14} {'by turns':>9} {'by prefix':>10} {'ratio':>6}"
    )
    made = []
    for load in WORKLOADS[: options.workloads]:
        turns, prefix = (cached_share(options.model, load, by_turns) for by_turns in (True, False))
        system = "shared" if load.shares_system else "own"
        what = f"{load.chats:6} {load.kv_memory:>10} {system:>14}"
        print(f"{what} {turns:9.1%} {prefix:10.1%} {prefix / turns:6.2f}", flush=True)
        made.append({**load._asdict(), "by_turns": turns, "by_prefix": prefix})
    return made


def cached_share(model: str, load: Workload, by_turns: bool) -> float:
    with (
        cluster(model, 3, load.kv_memory) as engine,
        route_by_turns(engine._board) if by_turns else nullcontext(),
        ThreadPoolExecutor(load.chats) as pool,
    ):
        chats = list(pool.map(lambda seed: chat(engine, seed, load.shares_system), range(load.chats)))
    runs = [run for each in chats for run in each]
    return sum(run.cached_tokens for run in runs) / sum(len(run.prompt_ids) for run in runs)


def chat(engine: ClusterModel, seed: int, shares_system: bool) -> list[Run]:
    """Holds a conversation."""
    system = SYSTEM if shares_system else f"You are guide number {seed}."
    name = f" My name is {seed}." if shares_system else ""
    messages: list[dict[str, str]] = [{"role": "system", "content": system}]
    runs = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question + name})
        sampling = Sampling(seed=seed, temperature=0.7, max_tokens=40)
        runs.append(engine.complete(engine.prepare_chat(messages, sampling)))
        messages.append({"role": "assistant", "content": runs[-1].text})
    return runs


@contextmanager
def route_by_turns(board: Board) -> Iterator[None]:
    """Makes a board, which the clusters of a process share, send each call to the next replica."""
    turns = count()

    def rank(route: Route) -> list[str]:
        names = [route.only] if route.only is not None else board.usable(route.needs)
        turn = next(turns) % len(names) if names else 0
        return names[turn:] + names[:turn]

    by_prefix, board.rank = board.rank, rank  # type: ignore[method-assign]
    try:
        yield
    finally:
        board.rank = by_prefix  # type: ignore[method-assign]


# ── replicas ───────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def cluster(model: str, replicas: int, kv_memory: str = "256MB") -> Iterator[ClusterModel]:
    """Gives an engine whose replicas share the cores of this machine."""
    each = EngineOptions(model, replicas=replicas, threads=threads_of_each(replicas), kv_memory=kv_memory)
    settings = ServerSettings(model, host="127.0.0.1", port=0)
    with engines(AppOptions((each,), settings)) as made:
        made[0].wait(replicas)
        yield made[0]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--replicas", type=int, default=2, help="that share the cores, for the throughput")
    parser.add_argument("--streams", type=int, default=8, help="of each engine and replica")
    parser.add_argument("--rounds", type=int, default=3, help="of the throughput; each starts Ray anew")
    parser.add_argument("--waves", type=int, default=5, help="of requests in a round")
    parser.add_argument("--only", choices=("throughput", "routing"), help="one part of it")
    parser.add_argument("--workloads", type=int, help="the first N of the routing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
