"""The conversation of a run is kept by forks, files and stores, and gives the run its title in lists."""

from __future__ import annotations

import sqlite3

import pytest
from engine.random_runs import PROMPT, small_llm
from hostile.glass import read as sections
from hostile.glass import with_headers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Run, Sampling, Store, TraceError
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.messages import MOST_TITLE, recorded
from glassloop.record.store.listing import Listing

TALK = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Where\n is  "}, {"type": "text", "text": "Oslo?"}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "In Norway"},
]


def make(messages=TALK, **options) -> Run:
    llm = small_llm()
    request = llm.prepare(PROMPT, Sampling(max_tokens=4, **options), messages=messages)
    list(llm.follow(request))
    return request.runs[0]


def test_forks_samples_files_and_stores_keep_the_conversation(location):
    run = make(n=2)
    fork = run.fork(2, text="ab", n=1)
    runs = [*run.samples, fork, fork.rewind(1)]
    store = Store(location)
    store.add(*runs)
    for each in (*runs, *from_bytes(to_bytes(runs)), *(store.get(each.id) for each in runs)):
        assert each.messages == TALK and each.title == "Where is Oslo?"
        assert each.to_dict()["messages"] == TALK
    assert {entry.title for entry in store.list()} == {"Where is Oslo?"}
    assert all(kept.facts["messages"] == TALK and kept.is_chat for kept in store.kept(Listing(9)))


@pytest.mark.parametrize(
    ("messages", "title"),
    [
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], "one"),
        ([{"role": "user", "content": "one"}, {"role": "user", "content": " \n"}], "one"),
        ([{"role": "system", "content": "rules"}], "rules"),
        ([{"role": "user"}], "(no text)"),
        ([{"role": "user", "content": "word " * 1000}], ("word " * 1000)[: MOST_TITLE - 1] + "…"),
    ],
)
def test_the_title_is_the_last_text_of_the_user(messages, title):
    assert make(messages).title == title


def test_the_title_of_a_prompt_is_its_beginning(location):
    llm = small_llm()
    text = llm.generate("two\nlines", Sampling(max_tokens=2))
    ids = llm.generate(PROMPT, Sampling(max_tokens=2))
    assert (text.title, ids.title) == ("two lines", bytes(PROMPT).decode())
    store = Store(location)
    store.add(text, ids)
    assert [entry.title for entry in store.list()] == [ids.title, text.title]
    assert from_bytes(to_bytes([ids]))[0].title == f"({len(PROMPT)} tokens)"  # there is no model to decode it


def test_what_a_file_cannot_hold_is_not_recorded():
    endless: list = []
    endless.append(endless)
    for bad in (
        [],
        [{"content": "no role"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": object()}],
        [{"role": "user", "content": endless}],
        [{"role": "user", "extra": float("nan")}],
        [{"role": "user", "content": "x" * (3 << 20)}],
    ):
        assert recorded(bad) is None
    assert make([{"role": "user", "content": 7}]).messages is None


@pytest.mark.parametrize(
    "value",
    [
        *("x", 7, {}, [], [7], [None], [[]], [{}], [{"role": 7}], [{"role": None}], [{"role": "x" * 65}]),
        *([{"role": "user", "content": 7}], [{"role": "user", "content": {"text": "x"}}]),
        *([{"role": "user", "content": [7]}], [{"role": "user", "content": [{"type": "text"}]}]),
        [{"role": "user", "content": [{"type": "text", "text": 7}]}],
        [{"role": "user", "content": [{"type": "text", "text": "x", "url": "x"}]}],
        *([{"role": "user", "tool_calls": "x"}], [{"role": "user", "tool_calls": [7]}]),
        *([{"role": "user", "x" * 65: 1}], [{"role": "user", "\x1b[2J": 1}]),
        [{"role": "user", "content": "x" * (3 << 20)}],
        [{"role": "user"}] * 10_001,
    ],
)
def test_hostile_messages_in_a_header_are_refused(value):
    file = to_bytes([make()])
    header = sections(file)[0].header
    with pytest.raises(TraceError, match=r"^the file is not a valid trace: messages") as caught:
        from_bytes(with_headers(file, {**header, "messages": value}))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


def test_a_file_without_messages_opens_as_before():
    file = to_bytes([make()])
    header = sections(file)[0].header
    del header["messages"]
    assert from_bytes(with_headers(file, header))[0].messages is None
    assert from_bytes(with_headers(file, {**header, "messages": None}))[0].messages is None


texts = st.text(max_size=40)
messages = st.lists(
    st.builds(
        lambda role, content, extra: {"role": role, "content": content, **extra},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        texts | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts})),
        st.dictionaries(
            st.sampled_from(["name", "tool_call_id", "reasoning_content"]), texts | st.booleans(), max_size=2
        ),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(messages)
def test_any_conversation_comes_back(talk):
    run = make()
    run.messages = recorded(talk)
    assert run.messages is not None
    back = from_bytes(to_bytes([run]))[0]
    assert back.messages == run.messages and back.title == run.title
    assert 0 < len(run.title) <= MOST_TITLE and "\n" not in run.title


# ── lists of a store ───────────────────────────────────────────────────────────────────────────────────────


def test_a_search_finds_titles_prompts_conversations_texts_and_ids(location):
    store = Store(location)
    llm = small_llm()
    talk = make(seed=1)
    text = llm.generate(
        "A straße, 100% _wide_" + " and so on" * 12 + " to the END", Sampling(seed=1, max_tokens=4)
    )
    ids = llm.generate(PROMPT, Sampling(seed=1, max_tokens=4))
    ids.tail = "ÉCOLE"
    store.add(talk, text, ids)

    def found(what: str) -> set[str]:
        made = {entry.id for entry in store.list(search=what)}
        assert made == {kept.entry.id for kept in store.kept(Listing(9, search=what), brief=True)}
        assert made == {run.id for run in (talk, text, ids) if Listing(search=what).has(run, "", 0.0)}
        return made

    assert found("oslo") == {talk.id} and found("BE BRIEF") == {talk.id} and found("norway") == {talk.id}
    assert found("STRASSE") == {text.id} and found("the end") == {text.id}
    assert found("%") == {text.id} and found("_wide") == {text.id}
    assert found("Quick Brown") == {ids.id} and found("école") == {ids.id}
    assert found(talk.id[:10]) == {talk.id} and found(talk.id[1:11]) == set()
    assert found("role") == set() and found("") == {talk.id, text.id, ids.id}


def test_pages_have_every_run_once_while_others_are_added(location):
    store = Store(location)
    runs = [make(seed=seed) for seed in range(25)]
    store.add(*runs)
    seen: list[str] = []
    before = None
    while page := store.kept(Listing(4, before=before), brief=True):
        seen += [kept.entry.id for kept in page]
        before = page[-1].added, page[-1].entry.id
        store.add(make(seed=99), runs[3])  # a new one comes first, one that is written again stays
    assert seen == [run.id for run in reversed(runs)]


def test_a_store_of_version_2_opens_with_titles_in_the_old_order(tmp_path):
    store = Store(tmp_path / "runs.db")
    llm = small_llm()
    runs = [make(), llm.generate("some text", Sampling(max_tokens=3)), make()]
    runs[0].created = 9e9  # a date of a file
    store.add(*runs)
    store.close()
    with sqlite3.connect(store.path) as old:
        old.execute("DROP INDEX runs_added")
        old.execute("DROP INDEX runs_pruned_by")
        old.execute("DROP INDEX runs_owner")
        for name in ("title", "talk", "added", "writer", "pruned_by", "owner"):
            old.execute(f"ALTER TABLE runs DROP COLUMN {name}")
        old.execute("PRAGMA user_version = 2")
    store = Store(store.path)
    assert [entry.id for entry in store.list()] == [run.id for run in reversed(runs)]
    assert store.upgrade()[0] == 2
    assert [entry.id for entry in store.list()] == [run.id for run in reversed(runs)]
    assert [entry.title for entry in store.list()] == [None, "some text", None]
    assert store.get("last").messages == TALK
    with sqlite3.connect(store.path) as old:  # a row that an older program adds now
        old.execute("UPDATE runs SET added = NULL, title = NULL")
    assert store.list()[0].id == runs[0].id and len(store.kept(Listing(9), brief=True)) == 3
