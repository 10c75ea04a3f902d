"""The simulation of a large cluster: what is known about simple cases comes out of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.cluster_simulation import POLICIES, Cluster, main, simulate, storm

SMALL = Cluster(replicas=80, seconds=40)


@pytest.fixture(scope="module")
def results():
    return {policy: simulate(SMALL, policy) for policy in POLICIES}


def test_a_conversation_that_stays_at_home_is_cached_and_queues_stay_short(results):
    home, bounded, random = (results[name] for name in ("home", "home, bounded", "round robin"))
    assert home.hit_rate > 1.3 * random.hit_rate and bounded.hit_rate > 1.3 * random.hit_rate
    assert bounded.first_token_99 < random.first_token_99
    assert bounded.utilization < random.utilization  # the same answers with less work


def test_the_longest_prefix_alone_overloads_a_few_replicas(results):
    assert results["longest prefix"].first_token_99 > 10 * results["home, bounded"].first_token_99
    assert results["longest prefix"].imbalance > 3 * results["home, bounded"].imbalance


def test_without_a_cache_all_policies_cache_nothing():
    cold = Cluster(replicas=20, seconds=10, cache=0.0, utilization=0.1)
    assert [simulate(cold, policy).hit_rate for policy in POLICIES] == [0.0] * len(POLICIES)


def test_a_single_hand_over_takes_as_long_as_its_tokens():
    idle = Cluster(replicas=10_000, utilization=0.0)
    alone = storm(idle, 0.0001, "at random", streams=1)
    assert alone.streams == 1 and alone.gap == alone.gap_most < 3.0
    many = storm(idle, 0.1, "at random", streams=2)
    # A geometric number of tokens: the median is ln 2 of the mean, plus what waits there (0.05 s on average).
    assert many.gap == pytest.approx(2000 * np.log(2) / idle.prefill + 0.05, rel=0.25)


def test_two_choices_shorten_the_longest_gap_of_a_storm():
    of_two, at_random = (storm(Cluster(replicas=1000), 0.1, spread) for spread in ("of two", "at random"))
    assert of_two.gap_99 < 0.8 * at_random.gap_99 and of_two.streams == at_random.streams == 3200


def test_the_last_line_is_json(capsys):
    main(["--replicas", "50", "--seconds", "10"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["policy"] for each in told["routing"]] == list(POLICIES) and len(told["storms"]) == 8
