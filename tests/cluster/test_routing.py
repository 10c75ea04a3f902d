"""Where requests go: to the longest cached prefix of token ids, unless that replica is clearly busier."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from cluster.local import statistics
from engine.small import finish, loop, model, request
from hypothesis import given
from hypothesis import strategies as st

from glassloop.cluster.board import Board, by_cost
from glassloop.cluster.messages import Identity, Needs, Report, Route
from glassloop.cluster.options import AppOptions, EngineOptions, deployment_name
from glassloop.cluster.prefixes import cached_tokens, digests, summary
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError
from glassloop.ops.batch import PAGE

SAME = Identity("0" * 64, "native arithmetic 2")
tokens = st.lists(st.integers(0, 200), max_size=5 * PAGE)


def report(
    name: str, load: int = 0, held=(), identity: Identity = SAME, room: int = 1000, pages: int = 0
) -> Report:
    prefixes = frozenset(digest for ids in held for digest in digests(ids))
    told = statistics(name, running=load, pages=pages, pages_capacity=room)
    return Report(identity, told, 1000, {}, False, prefixes)


def board(**reports: Report) -> Board:
    made = Board()
    made.set_replicas(reports)
    for name, each in reports.items():
        made.report(name, each)
    return made


@given(one=tokens, other=tokens, shared=st.integers(0, 5 * PAGE))
def test_cached_tokens_are_the_common_pages(one, other, shared):
    other = one[:shared] + other
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    common = min(len(one), len(other)) if same is None else same
    assert cached_tokens(digests(one), digests(other)) == common // PAGE * PAGE


def test_a_summary_names_what_the_kv_tree_holds():
    engine = loop(model())
    prompts = [[place % 200 for place in range(start, start + 100)] for start in (0, 50)]
    runs = finish(
        engine, *(request(ids, Sampling(seed=1, max_tokens=40, ignore_eos=True)) for ids in prompts)
    )
    known: dict = {}
    for _ in range(2):  # with and without digests from before
        held = summary(engine.tree, known)
        for run in runs:
            ids = [*run.prompt_ids, *run.token_ids[:-1]]  # the last token is never computed
            assert cached_tokens(digests(ids), held) == len(ids) // PAGE * PAGE
    assert cached_tokens(digests([*prompts[0][:64], *[7] * 64]), held) == 64
    assert cached_tokens(digests([9] * 64), held) == 0


@given(st.lists(st.tuples(*[st.integers(0, 100)] * 3), min_size=1, max_size=8))
def test_the_cheapest_replica_wins_unless_it_is_clearly_busier(replicas):
    load, cost, used = ({str(place): each[part] for place, each in enumerate(replicas)} for part in range(3))
    order = by_cost(list(load), cost, load, used)
    assert sorted(order) == sorted(load)
    best, least = order[0], min(load.values())
    idle = [name for name in load if load[name] <= 2 * least + 4]
    assert best in idle
    assert (cost[best], load[best], used[best]) == min((cost[name], load[name], used[name]) for name in idle)


@given(
    length=st.integers(0, 6 * PAGE),
    held=st.lists(st.integers(0, 6 * PAGE), min_size=2, max_size=4),
)
def test_the_longest_prefix_wins_where_nothing_else_is_known(length, held):
    ids = list(range(length))
    names = {f"r{place}": each for place, each in enumerate(held)}
    known = board(**{name: report(name, held=[ids[:each]], room=100) for name, each in names.items()})
    best = known.rank(Route(tuple(ids)))[0]
    cached = {name: min(each, length) // PAGE for name, each in names.items()}
    assert cached[best] == max(cached.values())


def test_conversations_with_one_system_prompt_do_not_fill_one_cache():
    known = board(**{name: report(name, room=40) for name in "abc"})
    system = list(range(4 * PAGE))
    homes = {}
    for chat in range(24):
        ids = (*system, *[1000 + chat] * PAGE)
        best = homes[chat] = known.rank(Route(ids))[0]
        known.note(best, ids)
    counts = Counter(homes.values())
    assert len(counts) == 3 and max(counts.values()) <= 10
    for chat, home in homes.items():  # the next turn goes where the conversation is
        assert known.rank(Route((*system, *[1000 + chat] * PAGE, *[7] * PAGE)))[0] == home


def test_a_few_forks_of_a_long_run_stay_where_it_is():
    known = board(**{name: report(name, room=400) for name in "abc"})
    run = tuple(range(20 * PAGE))
    known.note("b", run)
    for fork in range(4):
        ids = (*run, *[500 + fork] * PAGE)
        assert known.rank(Route(ids))[0] == "b"
        known.note("b", ids)


def test_a_new_prompt_goes_where_it_evicts_nothing():
    full = report("a", room=100, pages=100)
    known = board(a=full, b=report("b", load=3, room=100, pages=20))
    for _ in range(3):
        assert known.rank(Route(tuple(range(4 * PAGE))))[0] == "b"


def test_a_prefix_of_another_adapter_is_not_cached():
    ids = tuple(range(3 * PAGE))
    needs = Needs(SAME, ("sea", "f" * 64))
    adapters = {"sea": "f" * 64}
    known = board(**{name: replace(report(name, held=[ids]), adapters=adapters) for name in "ab"})
    known.report("b", replace(known.reports["b"], prefixes=frozenset(digests(ids, "f" * 64))))
    assert known.rank(Route(ids, needs=needs))[0] == "b"
    assert known.rank(Route(ids))[0] == "a"
    assert known.rank(Route(ids, needs=Needs(SAME, ("sea", "0" * 64)))) == []


def test_an_old_report_does_not_count_the_branches_of_this_ingress_twice_or_too_long():
    held = board(a=report("a"), b=report("b"))
    for name in "ab":
        held.begin(name, 8)
        held.place(name, name)
    held.report("a", report("a", load=8))  # all of them are this ingress's
    held.report("b", report("b", load=11))  # three are another's
    for name in "ab":
        held.end(name)  # they end; the next reports have not come yet
    firsts = Counter(burst(held, 7))
    assert firsts == {"a": 5, "b": 2}


def test_a_report_that_is_older_than_the_end_of_a_call_does_not_count_it():
    held = board(a=report("a"), b=report("b"))
    held.begin("one", 8)
    held.place("one", "a")
    held.end("one")
    held.report("a", report("a", load=8))  # from before the end
    assert Counter(burst(held, 4)) == {"a": 2, "b": 2}
    held.report("a", report("a", load=12))  # eight more are those of another ingress
    assert held.rank(Route())[0] == "b"


def burst(held: Board, requests: int) -> list[str]:
    """Ranks requests that come together: none has been sent when the last one is ranked."""
    keys = [str(number) for number in range(requests)]
    for key in keys:
        held.begin(key)
    return [held.rank(Route(key=key))[0] for key in keys]


def test_requests_that_come_together_are_spread():
    held = board(a=report("a", pages=9), b=report("b"))
    assert Counter(burst(held, 16)) == {"a": 8, "b": 8}
    for number in range(16):  # they are sent, and end
        held.place(str(number), "ab"[number % 2])
        held.end(str(number))
    assert not held._load


def test_a_call_that_is_ranked_again_counts_once():
    held = board(a=report("a"), b=report("b"), c=report("c"))
    held.begin("one", 4)
    for _ in range(5):
        held.rank(Route(key="one"))
    assert sum(held._load.values()) == 4
    held.end("one")
    held.rank(Route(key="one"))  # Ray Serve may still look for a replica for a call that was given up
    assert not held._load


def test_a_request_goes_where_its_branch_is():
    ids = list(range(3 * PAGE))
    held = board(a=report("a"), b=report("b", held=[ids]), c=report("c"))
    assert held.rank(Route(tuple(ids)))[0] == "b"
    assert held.rank(Route((*ids, 5, 6, 7)))[0] == "b"
    busy = board(a=report("a"), b=report("b", load=50, held=[ids]), c=report("c"))
    assert busy.rank(Route(tuple(ids)))[0] != "b"
    sent = board(a=report("a"), b=report("b"), c=report("c"))
    sent.note("c", tuple(ids))  # before the replica has reported it
    assert sent.rank(Route(tuple(ids)))[0] == "c"


def test_equal_replicas_take_turns():
    known = board(a=report("a"), b=report("b"), c=report("c"))
    assert {known.rank(Route())[0] for _ in range(3)} == {"a", "b", "c"}


def test_only_replicas_that_answer_and_are_equal_get_a_request():
    other = Identity("1" * 64, SAME.op_set)
    known = board(a=report("a"), b=report("b", identity=other), c=report("c"))
    known.suspect("c")
    assert known.rank(Route(needs=Needs(SAME))) == ["a"]
    assert known.rank(Route(needs=Needs(other))) == ["b"]
    assert known.rank(Route(needs=Needs(Identity("2" * 64, SAME.op_set)))) == []
    assert known.rank(Route(only="c")) == ["c"]  # to hear whether it is alive
    known.suspect("c", False)
    assert sorted(known.rank(Route(needs=Needs(SAME)))) == ["a", "c"]
    known.set_replicas(["b"])
    assert known.rank(Route(needs=Needs(SAME))) == []
    assert known.rank(Route(only="a")) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replica": 3}, "replica is no option"),
        ({"replicas": 0}, "replicas is 0"),
        ({"replicas": 4, "most_replicas": 2}, "most_replicas is 2"),
        ({"models": []}, "models is not a list"),
        ({"models": ["a", "a"], "open_to_all": True}, "models has one twice"),
        ({"models": ["a", "b"], "adapters": {"x": "/y"}, "open_to_all": True}, "adapters is given"),
        ({"adapters": {"no name": "/y"}, "open_to_all": True}, "adapter is 'no name'"),
        ({"adapters": ["x"], "open_to_all": True}, "adapters is not"),
        ({"stall": 0.1, "open_to_all": True}, "stall is 0.1"),
        ({}, "--api-key"),
        ({"api_keys": "a-key-of-your-choice"}, "api_keys is a str; a list of texts is expected"),
        ({"api_keys": [12345678]}, "api_keys is a tuple; a list of texts"),
        ({"api_keys": {"key": "secret-key"}}, "api_keys is a dict; a list of texts"),
        ({"open_to_all": "no"}, "open_to_all is 'no'; true or false is expected"),
        ({"open_to_all": True, "log_prompts": 1}, "log_prompts is 1; true or false is expected"),
        ({"open_to_all": True, "keep": "10"}, "keep is '10'; a whole number from 0 up"),
        ({"open_to_all": True, "most_prompt": True}, "most_prompt is True; a whole number"),
        ({"open_to_all": True, "timeout": "600"}, "timeout is '600'; seconds from 0 up"),
        ({"open_to_all": True, "plugins": "a.py"}, "plugins is 'a.py'; a list of texts is expected"),
        ({"open_to_all": True, "draft": 3}, "draft is 3; true, false or a name is expected"),
        ({"open_to_all": True, "store": 3}, "store is 3; a file or a URL is expected"),
    ],
)
def test_wrong_options_of_an_application_are_refused(values, message):
    with pytest.raises(GlassloopError, match=message):
        AppOptions.from_dict(values)


def test_options_of_an_application():
    made = AppOptions.from_dict(
        {"models": ["a", "/x/b.gguf"], "replicas": 2, "most_replicas": 5, "gpus": 1, "api_keys": ["k"]}
    )
    assert [each.model for each in made.engines] == ["a", "/x/b.gguf"]
    assert made.engines[1].resources == {"num_cpus": 1, "num_gpus": 1}
    assert made.settings.api_keys == ("k",)
    assert deployment_name("/x/b.gguf") == "engine-b"
    assert EngineOptions("a", threads=4).resources["num_cpus"] == 4


def test_without_ray_there_is_a_message_that_says_how_to_install_it():
    code = (
        "import sys; sys.modules['ray'] = None; import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name.startswith('ray') else find(name, *a);"
        "from glassloop.cli.main import main;"
        "sys.argv = ['glassloop', 'serve', '--replicas', '2', '--no-store']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'glassloop[ray]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_key_that_is_no_list_is_not_told():
    with pytest.raises(GlassloopError) as raised:
        AppOptions.from_dict({"api_keys": "a-key-of-your-choice"})
    assert "choice" not in str(raised.value) and raised.value.field == "api_keys"
