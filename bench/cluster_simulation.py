"""A simulation of routing and hand-over in a cluster of many replicas: docs/cluster-scale.md.

    python -m bench.cluster_simulation [--replicas 10000] [--seconds 150] [--plot FILE.svg]

Time goes in slots, and everything in a slot is computed for all conversations at once. A replica is a queue
of work in seconds: the prompt tokens that it has not cached, and its share of the batch for each token that
it generates. Its cache holds what was used last; an entry is gone once as many other tokens as fit have been
used since. A router knows the queues as they were at the last report and not what other routers have sent
since, so choices that look good to all of them at once are punished as in a real cluster.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

POLICIES = ("round robin", "least busy", "longest prefix", "home", "home, bounded")
_CANDIDATES = 8  # replicas that a router looks at where it is free to choose


@dataclass(frozen=True)
class Cluster:
    """The sizes of a cluster and of its load. Speeds are those of one replica."""

    replicas: int = 10_000
    seconds: int = 150
    slot: float = 0.1  # seconds
    report: float = 0.5  # seconds between two reports of a replica's load
    utilization: float = 0.7  # if every prompt but the last question were cached everywhere
    prefill: float = 8_000.0  # tokens per second
    decode: float = 2_000.0  # tokens per second, all streams of the batch together
    speed: float = 50.0  # tokens per second of one stream
    cache: float = 400_000.0  # tokens
    system_prompts: int = 200
    system_tokens: int = 1_500
    turns: float = 6.0  # per conversation
    question: float = 150.0  # tokens
    answer: float = 250.0  # tokens
    thinking: float = 20.0  # seconds between an answer and the next question
    tolerance: float = 0.5  # seconds that a home's queue may be longer than the average one
    seed: int = 1


@dataclass
class Result:
    """What a policy achieved: the share of prompt tokens that were cached, seconds until the first token (the
    median and the 99th percentile), and the longest queue over the average one."""

    policy: str
    hit_rate: float
    first_token: float
    first_token_99: float
    imbalance: float
    utilization: float


def simulate(cluster: Cluster, policy: str) -> Result:
    """Returns what a policy achieves, over the second half of the time."""
    rng = np.random.default_rng(cluster.seed)
    c, count = cluster, cluster.replicas
    work = np.zeros(count)  # seconds of work that wait
    seen = np.zeros(count)  # the same, as routers know it
    used = np.zeros(count)  # tokens that entered the cache so far
    # The value of `used` when a replica last used a system prompt; long ago if never.
    prompt_mark = np.full((count, c.system_prompts), -np.inf)
    popularity = 1.0 / np.arange(1, c.system_prompts + 1)
    popularity /= popularity.sum()
    # Conversations wait here for their next turn, one bucket for each slot.
    per_turn = c.question / c.prefill + c.answer / c.decode
    rate = c.utilization * count / per_turn  # turns per second
    slots = int(c.seconds / c.slot)
    buckets: list[list[np.ndarray]] = [[] for _ in range(slots + 1)]
    waits, cached_tokens, prompt_tokens, longest, average, done = [], 0.0, 0.0, [], [], 0.0
    for at in range(slots):
        new = rng.poisson(rate / c.turns * c.slot)
        # Columns: system prompt, history (tokens), home (replica or -1), mark of the home.
        fresh = np.column_stack(
            [
                rng.choice(c.system_prompts, new, p=popularity),
                np.zeros(new),
                np.full(new, -1.0),
                np.zeros(new),
            ]
        )
        talks = np.concatenate([fresh, *buckets[at]]) if buckets[at] else fresh
        buckets[at] = []
        if at % max(1, round(c.report / c.slot)) == 0:
            seen = work.copy()
        prompt, history, home = talks[:, 0].astype(int), talks[:, 1], talks[:, 2].astype(int)
        questions = 1 + rng.poisson(c.question, len(talks))
        answers = 1 + rng.poisson(c.answer, len(talks))
        chosen = _choose(rng, c, policy, seen, used, prompt_mark, prompt, home, talks[:, 3])
        has_history = (home == chosen) & (used[chosen] - talks[:, 3] < c.cache)
        has_prompt = has_history | (used[chosen] - prompt_mark[chosen, prompt] < c.cache)
        cached = has_prompt * c.system_tokens + has_history * history
        total = c.system_tokens + history + questions
        waits_now = work[chosen] + (total - cached) / c.prefill
        np.add.at(work, chosen, (total - cached) / c.prefill + answers / c.decode)
        # What was cached stays, and what was computed is added.
        np.add.at(used, chosen, total - cached + answers)
        prompt_mark[chosen, prompt] = used[chosen]
        goes_on = rng.random(len(talks)) > 1.0 / c.turns
        later = np.column_stack([prompt, history + questions + answers, chosen, used[chosen]])[goes_on]
        pause = rng.exponential(c.thinking, len(later)) + (waits_now + answers / c.speed)[goes_on]
        due = at + 1 + (pause / c.slot).astype(int)
        order = np.argsort(due, kind="stable")
        edges = np.flatnonzero(np.diff(due[order])) + 1
        for part in np.split(order, edges):
            if len(part) and due[part[0]] <= slots:
                buckets[due[part[0]]].append(later[part])
        done += np.minimum(work, c.slot).sum() if at >= slots // 2 else 0.0
        work = np.maximum(work - c.slot, 0.0)
        if at >= slots // 2:
            waits.append(waits_now)
            cached_tokens += cached.sum()
            prompt_tokens += total.sum()
            longest.append(work.max())
            average.append(work.mean())
    all_waits = np.concatenate(waits)
    return Result(
        policy,
        float(cached_tokens / prompt_tokens),
        float(np.median(all_waits)),
        float(np.quantile(all_waits, 0.99)),
        float(np.mean(longest) / max(np.mean(average), 1e-9)),
        float(done / ((slots - slots // 2) * c.slot * count)),
    )


def _choose(
    rng: np.random.Generator,
    c: Cluster,
    policy: str,
    seen: np.ndarray,
    used: np.ndarray,
    prompt_mark: np.ndarray,
    prompt: np.ndarray,
    home: np.ndarray,
    mark: np.ndarray,
) -> np.ndarray:
    """Returns the replica for each request.

    round robin     any
    least busy      the less busy of two that are chosen at random
    longest prefix  always where the longest prefix is cached, however busy that replica is
    home            where the conversation was; a new one goes to the cheapest of some candidates, where the
                    system prompt, if it must be computed, counts as work
    home, bounded   the same, unless that replica is clearly busier than the average
    """
    if policy == "round robin":
        return rng.integers(c.replicas, size=len(prompt))
    if policy == "least busy":  # of two that are chosen at random
        pair = rng.integers(c.replicas, size=(len(prompt), 2))
        return np.where(seen[pair[:, 0]] <= seen[pair[:, 1]], pair[:, 0], pair[:, 1])
    # Of some candidates, one that has the system prompt; of these the least busy.
    some = rng.integers(c.replicas, size=(len(prompt), _CANDIDATES))
    has = used[some] - prompt_mark[some, prompt[:, None]] < c.cache
    cost = seen[some] + np.where(has, 0.0, c.system_tokens / c.prefill)
    free = some[np.arange(len(prompt)), cost.argmin(axis=1)]
    known = home >= 0
    stays = known & (used[home] - mark < c.cache)
    if policy == "longest prefix":
        # A new conversation goes where its system prompt was first: all routers agree on one replica.
        return np.where(stays, home, prompt * 7919 % c.replicas)
    if policy == "home, bounded":
        stays &= seen[home] <= seen.mean() + c.tolerance
    return np.where(stays, home, free)


@dataclass
class Storm:
    """What the death of a share of the replicas does to the streams that they were computing."""

    dead: float
    spread: str  # how the streams are spread over the others
    streams: int
    gap: float  # seconds, the median of the handed-over streams
    gap_99: float
    gap_most: float
    utilization: float  # of the replicas that are left


def storm(cluster: Cluster, dead: float, spread: str, streams: int = 32, context: int = 2_000) -> Storm:
    """Returns how long the streams of the dead replicas stand still until another one has computed their
    tokens again. Each replica computes some streams, each with a context of some tokens on average."""
    rng = np.random.default_rng(cluster.seed)
    left = min(round(cluster.replicas * (1.0 - dead)), cluster.replicas - 1)
    lost = (cluster.replicas - left) * streams
    tokens = 1 + rng.geometric(1.0 / context, lost)
    work = rng.exponential(0.05, left)  # what waits there anyway
    # A survivor goes on with its own streams meanwhile, so hand-overs get what they leave of its time.
    share = 1.0 - cluster.utilization
    gaps = np.empty(lost)
    batch = max(1, lost // 200)  # streams that are sent before loads are reported again
    for start in range(0, lost, batch):
        part = slice(start, min(start + batch, lost))
        size = part.stop - part.start
        if spread == "at random":
            to = rng.integers(left, size=size)
        else:
            pair = rng.integers(left, size=(size, 2))
            to = np.where(work[pair[:, 0]] <= work[pair[:, 1]], pair[:, 0], pair[:, 1])
        seconds = tokens[part] / cluster.prefill / share
        # Streams of the same batch on the same replica wait for each other.
        order = np.argsort(to, kind="stable")
        ends = np.cumsum(seconds[order])
        first = np.r_[True, to[order][1:] != to[order][:-1]]
        before = np.maximum.accumulate(np.where(first, ends - seconds[order], 0.0))
        gaps[part][order] = work[to[order]] + ends - before
        np.add.at(work, to, seconds)
    return Storm(
        dead,
        spread,
        lost,
        float(np.median(gaps)),
        float(np.quantile(gaps, 0.99)),
        float(gaps.max()),
        cluster.utilization / (1.0 - dead),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the simulation and prints tables and one last line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=Cluster.replicas)
    parser.add_argument("--seconds", type=int, default=Cluster.seconds)
    parser.add_argument("--plot", metavar="FILE", help="draw the results (needs matplotlib)")
    given = parser.parse_args(arguments)
    cluster = replace(Cluster(), replicas=given.replicas, seconds=given.seconds)
    results = [simulate(cluster, policy) for policy in POLICIES]
    print(f"{cluster.replicas} replicas, {cluster.seconds} s\n")
    print(f"{'policy':<18}{'cached':>8}{'first token':>14}{'99 %':>9}{'longest/mean':>14}{'busy':>7}")
    for each in results:
        print(
            f"{each.policy:<18}{each.hit_rate:>8.1%}{each.first_token:>12.3f} s{each.first_token_99:>7.2f} s"
            f"{each.imbalance:>14.1f}{each.utilization:>7.0%}"
        )
    shares, spreads = (0.001, 0.01, 0.1, 0.25), ("at random", "of two")
    storms = [storm(cluster, dead, spread) for dead in shares for spread in spreads]
    print(f"\n{'dead':>6}  {'spread':<11}{'streams':>9}{'gap':>9}{'99 %':>9}{'most':>9}{'busy after':>12}")
    for each in storms:
        print(
            f"{each.dead:>6.1%}  {each.spread:<11}{each.streams:>9}{each.gap:>7.2f} s{each.gap_99:>7.2f} s"
            f"{each.gap_most:>7.2f} s{each.utilization:>12.0%}"
        )
    if given.plot:
        _draw(given.plot, results, storms)
    print(
        json.dumps({"routing": [vars(each) for each in results], "storms": [vars(each) for each in storms]})
    )


def _draw(path: str, results: Sequence[Result], storms: Sequence[Storm]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "glassloop"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for each in results:
        point = (each.hit_rate, each.first_token_99)
        left.plot(*point, "o", color="tab:blue")
        right_side = each.hit_rate > 0.7
        # The two policies with a home are nearly at the same place.
        shift = (-8 if right_side else 8, -12 if each.policy == "home" else 0)
        ha = "right" if right_side else "left"
        left.annotate(each.policy, point, shift, textcoords="offset points", ha=ha, va="center")
    left.set(xlabel="share of prompt tokens cached", ylabel="first token, 99th percentile (s)", yscale="log")
    left.set_xlim(0, 1)
    left.margins(y=0.15)
    for spread in ("at random", "of two"):
        some = [each for each in storms if each.spread == spread]
        right.plot([100 * each.dead for each in some], [each.gap_99 for each in some], "o-", label=spread)
    right.set(xlabel="replicas that die at once (%)", ylabel="gap, 99th percentile (s)", xscale="log")
    right.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
