"""`glassloop runs`: chats are listed and shown as conversations, and found again."""

from __future__ import annotations

import json
import sqlite3

import pytest
from cli.terminal import run
from engine.random_runs import PROMPT, small_llm

from glassloop import Run, Sampling, Store

TALK = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Where\x1b[2J is "}, {"type": "text", "text": "Oslo?"}],
    },
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}]},
    {"role": "tool", "content": "In\nNorway"},
]


def make(prompt=PROMPT, messages=None, seed: int = 1) -> Run:
    llm = small_llm()
    request = llm.prepare(prompt, Sampling(max_tokens=3, seed=seed), messages=messages)
    list(llm.follow(request))
    return request.runs[0]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [make(messages=TALK), make("some\ntext"), make(seed=2)]


@pytest.fixture(scope="module")
def store(runs, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("runs") / "runs.db"
    Store(path).add(*runs)
    return str(path)


def listed(store: str, *arguments: str) -> list[dict]:
    return json.loads(run("runs", "list", "--json", *arguments, GLASSLOOP_STORE=store).stdout)


def test_a_list_has_titles_and_never_ids(store, runs):
    text = run("runs", "list", GLASSLOOP_STORE=store).stdout
    assert all(id in text for id in (each.id[:8] for each in runs))
    assert "is Oslo?" in text and "some text" in text and "the quick brown fox" in text
    assert "\x1b" not in text and str(PROMPT[0]) not in text.split("the quick")[1][:30]
    entries = listed(store)
    assert [entry["title"] for entry in entries] == [each.title for each in reversed(runs)]
    assert [entry["messages"] for entry in entries] == [None, None, TALK]


def test_a_list_is_searched_and_has_as_many_as_are_wanted(store, runs):
    assert [entry["id"] for entry in listed(store, "--search", "NORWAY")] == [runs[0].id]
    assert [entry["id"] for entry in listed(store, "-s", runs[1].id[:8])] == [runs[1].id]
    assert listed(store, "--search", "nothing like it") == []
    assert [entry["id"] for entry in listed(store, "-n", "2")] == [runs[2].id, runs[1].id]


def test_a_chat_is_shown_as_a_conversation(store, runs):
    shown = run("runs", "show", runs[0].id, GLASSLOOP_STORE=store).stdout
    assert "system: Be brief.\nuser: Where" in shown and "is Oslo?\nassistant: (calls" in shown
    assert "tool: In\nNorway\nassistant: " in shown and "\x1b" not in shown
    assert "margin" in shown and "[" + ", ".join(map(str, PROMPT[:3])) not in shown
    plain = json.loads(run("runs", "show", runs[0].id, "--json", GLASSLOOP_STORE=store).stdout)
    assert plain["messages"] == TALK and plain["title"] == runs[0].title


def test_runs_of_an_older_version_have_titles_too(tmp_path):
    path = tmp_path / "runs.db"
    done = run("generate", "The sea", "-n", "2", GLASSLOOP_STORE=str(path))
    assert done.returncode == 0, done.stderr
    kept = Store(path).get("last")
    kept.prompt, kept.id = None, "cd" * 8  # as chats were kept
    unknown = make(seed=3)
    Store(path).add(kept, unknown)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET title = NULL")
    titles = {entry["id"]: entry["title"] for entry in listed(str(path))}
    assert titles == {Store(path).list()[-1].id: "The sea", kept.id: "The sea", unknown.id: "(43 tokens)"}
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET data = x'00' WHERE id = ?", (kept.id,))
    assert {entry["title"] for entry in listed(str(path))} == {"The sea", "(no text)", "(43 tokens)"}


def test_the_store_may_be_in_postgresql(runs, postgres, tmp_path):
    url = postgres.new_database()
    runs[0].save(tmp_path / "a.glass")
    assert run("runs", "import", str(tmp_path / "a.glass"), GLASSLOOP_STORE=url).stdout.endswith(
        "1 run imported, 0 there already\n"
    )
    Store(url).add(runs[1])
    assert [entry["title"] for entry in listed(url)] == [runs[1].title, runs[0].title]
    assert run("runs", "rm", "--keep", "1", GLASSLOOP_STORE=url).stdout == "removed 1 run, 1 left\n"
    bad = run("runs", "list", GLASSLOOP_STORE=url.replace("s3cret", "wr0ng"))
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "wr0ng" not in bad.stderr
    assert "password authentication failed" in bad.stderr


def test_a_run_is_exported_as_a_page(store, runs, tmp_path):
    done = run("export", runs[1].id, "--html", str(tmp_path / "a.html"), "--json", GLASSLOOP_STORE=store)
    assert json.loads(done.stdout)["size"] == (tmp_path / "a.html").stat().st_size
    assert "Content-Security-Policy" in (tmp_path / "a.html").read_text(encoding="utf-8")
    for flags, said in (
        (("--explain", "3"), "--explain names the token '3'; a number from 0 to 2 is expected"),
        ((), "cannot write"),
    ):
        path = tmp_path / "a.html" if flags else tmp_path / "none" / "a.html"
        bad = run("export", runs[1].id, "--html", str(path), *flags, GLASSLOOP_STORE=store)
        assert bad.returncode == 2 and said in bad.stderr and bad.stderr.count("\n") == 1
