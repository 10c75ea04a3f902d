"""The first hour of a newcomer, on the real default model: a teacher and an engineer in the terminal
(commands on a pseudo-terminal), the author of a stage, a researcher with many prompts, a backend developer
with the openai client. Each comment names the point that a step checks. The page's part is in web/e2e."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import httpx2 as httpx
import pytest
from cli.terminal import Session, on_terminal, run
from engine.test_own_stages import PLUGIN
from openai import BadRequestError, NotFoundError, OpenAI
from server.conftest import Server, serving
from server.test_runs import import_
from test_exercises import WRITTEN_WITH
from waiting import wait_until

from glassloop import LLM, Run, Store
from glassloop.ops import choose_ops

ROOT = Path(__file__).parents[1]
SEA = "The sea is"
MARS = "How many moons does Mars have?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


class Terminal:
    """Commands on a pseudo-terminal, all with the same store."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def __call__(self, *command: str, code: int = 0) -> str:
        """Returns what a command writes, without escapes, and with any space where a line may be wrapped."""
        ended, text = on_terminal(*command, columns=120, GLASSLOOP_STORE=str(self.store))
        assert ended == code, text
        return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split())

    def json(self, *command: str) -> dict:
        done = run(*command, "--json", GLASSLOOP_STORE=str(self.store))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def last(self) -> Run:
        return Store(self.store).get("last")


@pytest.fixture
def terminal(tmp_path) -> Terminal:
    return Terminal(tmp_path / "runs.db")


@pytest.mark.skipif(shutil.which("make") is None, reason="the README starts with make")
def test_the_readme_starts_with_commands_that_answer_what_it_says(terminal, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # The command `glassloop` is found: the README says how before it is first typed by the reader.
    start = readme[readme.index("## Start") :]
    assert start.index("source .venv/bin/activate") < start.index("\nglassloop ")
    # `make run` has a fixed seed, so that the first impression does not depend on luck.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "glassloop").write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> "$(dirname "$0")/asked"\n')
    (tmp_path / "bin" / "glassloop").chmod(0o755)
    (tmp_path / ".installed").touch()
    made = ("make", "-s", "-C", ROOT, "-o", tmp_path / ".installed", f"VENV={tmp_path}", "run")
    assert os.spawnvp(os.P_WAIT, "make", list(map(str, made))) == 0
    asked = (tmp_path / "bin" / "asked").read_text()
    assert "The capital of France is" in asked
    assert "--seed 1" in asked
    same = choose_ops().description == WRITTEN_WITH
    _, capital, options = asked.partition("The capital of France is")
    done = run("generate", capital, *options.split(), GLASSLOOP_STORE=str(terminal.store))
    assert done.returncode == 0, done.stderr
    if same:  # a whole sentence; with another op set a close choice may fall differently
        assert done.stdout == " Paris, which is the largest city in the country.\n"
    # Every example with an answer gives this answer (test_snippets); the JSON has a name and an age.
    (person,) = [command for command in readme.splitlines() if "--json-schema" in command]
    done = run(*shlex.split(person)[2:], GLASSLOOP_STORE=str(terminal.store))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"name", "age"}


def test_a_teacher_and_an_engineer_in_the_terminal(terminal, tmp_path):
    # A run has its seed and its settings in the line of statistics.
    told = terminal("generate", SEA, "--seed", "3", "-n", "8", "--temperature", "1")
    assert "temperature 1 · seed 3 · run " in told and "text continued (--chat asks the model)" in told
    run = terminal.last()
    # A token is found by its text as well as by its number, and both are counted from 0.
    by_text = terminal("explain", run.id, "--step", run.tokens[2].piece)
    assert by_text == terminal("explain", run.id, "--step", str(run.token_ids.index(run.tokens[2].id)))
    assert "no token of the answer has this text" in terminal("explain", run.id, "--step", "qux", code=2)
    # A fork keeps both runs, and a diff of two that exist says where they part and why.
    terminal("fork", run.id, "--at", "2", "--token", " not")
    fork = terminal.last()
    assert (fork.parent, fork.fork_at, fork.tokens[2].piece) == (run.id, 2, " not")
    parted = terminal("diff", run.id, fork.id)
    assert f"they differ from token 2 on: {run.tokens[2].piece!r} against ' not'" in parted
    # "Where did it go wrong?" has an answer, with units.
    worst = terminal("runs", "worst", run.id)
    assert "most surprising tokens" in worst and " bits " in worst
    # The model is asked through its chat template, with the settings of its authors.
    chat = terminal("generate", "--chat", MARS, "--system", "Answer briefly.", "--seed", "1", "-n", "8")
    assert "temperature 0.5 (the model's default)" in chat and "<|im_" not in chat
    # A chat is listed by its question and shown as a conversation; entropy has its unit.
    assert MARS[:20] in terminal("runs", "list", "--search", "moons")
    assert MARS[:20] not in terminal("runs", "list", "--search", SEA)
    shown = terminal("runs", "show", "last")
    assert f"system: Answer briefly. user: {MARS} assistant: " in shown and " nats " in shown
    # Runs go to a file and come back; a file that is there already is no error.
    file = str(tmp_path / "sea.glass")
    terminal("runs", "export", run.id, file, "--tree")
    assert "0 runs imported, 2 there already" in terminal("runs", "import", file)
    other = Terminal(tmp_path / "other.db")
    assert "2 runs imported" in other("runs", "import", file)
    assert "identical, 8 of 8 tokens" in other("replay", run.id)
    # Strategies and seeds are compared; --samples and -n are not taken for each other.
    compared = terminal("compare", SEA, "--with", "greedy", "--with", "seed=1", "--samples", "1", "-n", "4")
    assert "greedy / seed=1: " in compared and "differs at" in compared
    assert "--n is deprecated; use --samples" in terminal("generate", SEA, "--n", "2", "-n", "2")
    # The beams of a search are drawn where it was made.
    assert "chosen" in terminal("generate", SEA, "--beam-width", "2", "-n", "3")
    # A wrong option is named together with the right one.
    assert "neither an existing file nor JSON" in terminal(
        "generate", SEA, "--json-schema", "no.json", code=2
    )


def test_the_author_of_a_stage_takes_it_everywhere(terminal, tmp_path):
    file = tmp_path / "my_stages.py"
    file.write_text(PLUGIN)
    own = ("--plugin", str(file))
    cat = ("My sister has a cat.", "--temperature", "0", "-n", "24")
    # A stage of one's own, with options for each request, in the terminal.
    terminal(
        "generate", *cat, *own, "--stages", "default,new_opening", "--stage-option", "new_opening.length=2"
    )
    run = terminal.last()
    assert run.sampling.stage_options == {"new_opening": {"length": 2}}
    # It is explained and replayed; without the plugin the error says which one to load.
    assert "new_opening" in terminal("explain", run.id, "--step", "1", *own)
    assert "identical" in terminal("replay", run.id, *own)
    assert "pass --plugin my_stages.py" in terminal("replay", run.id, code=2)
    # It is compared with what is built in.
    ways = ("--with", "default", "--with", "stages=default,new_opening,new_opening.length=2")
    assert "stage new_opening was added" in terminal("compare", *cat, *own, *ways)
    # A mistake is reported with the name of the stage and the author's own line, not with our call stack.
    file.write_text(PLUGIN.replace("    answer = ", "    answer = candidates.only([])\n    answer = "))
    wrong = terminal("generate", *cat, *own, "--stages", "default,new_opening", code=2)
    assert "a bool for each id of the vocabulary" in wrong and "raised by stage 'new_opening'" in wrong
    assert "answer = candidates.only([])" in wrong and "click" not in wrong
    # An unknown stage: how to register one.
    assert "load its file with --plugin" in terminal("generate", *cat, "--stages", "default,nonsense", code=2)


def test_a_researcher_runs_many_prompts(terminal, tmp_path):
    # Many prompts in one batch from a file, chats among them, each with a seed of its own.
    lines = [SEA, json.dumps({"prompt": SEA}), json.dumps({"messages": [{"role": "user", "content": MARS}]})]
    (tmp_path / "prompts.jsonl").write_text("\n".join([*lines, json.dumps({"prompt": SEA, "seed": 7})]))
    many = ("generate", "--from", str(tmp_path / "prompts.jsonl"), "--seed", "7", "-n", "4", "--json")
    done = run(*many, GLASSLOOP_STORE=str(terminal.store))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (
        len({answer["seed"] for answer in answers[:3]}) == 3 and answers[2]["messages"][0]["content"] == MARS
    )
    assert answers[3]["text"] == answers[0]["text"] and answers[3]["seed"] == answers[0]["seed"] == 7
    # Each run as a table: in a file, and in Python with the same numbers.
    table = tmp_path / "run.csv"
    terminal("runs", "export", answers[0]["id"], str(table))
    first = Store(terminal.store).run(answers[0]["id"])
    assert first is not None and table.read_text().count("\n") == 1 + len(first.to_records())
    # The same in Python: options as keywords, with the model's defaults; a wrong one is named.
    with LLM(kv_memory="100MB") as llm:
        same = llm.generate([SEA, SEA], seed=7, max_tokens=4)
        assert [made.text for made in same] == [answers[0]["text"], answers[1]["text"]]
        assert str(same[0].explain(0)).endswith(same[0].explain(0).sentence)
        with pytest.raises(Exception, match="did you mean temperature"):
            llm.generate(SEA, temprature=1)


def test_an_adapter_from_an_own_text_survives_ctrl_c_after_the_last_step(terminal, tmp_path):
    (tmp_path / "mine.txt").write_text("The Zorblax lamp glows in purple.\n" * 30)
    out = str(tmp_path / "mine")
    # One command for a text: the model, the packing and the batch are chosen. (Few steps: this is a test.)
    short = ("--steps", "2", "--length", "16", "--batch", "1", "--accumulate", "1", "--threads", "1")
    session = Session("train", "lora", "--data", str(tmp_path / "mine.txt"), "--out", out, *short)
    # The plan and the expected time are said before the first step.
    session.wait_for(r"2 steps of 16 tokens \(1 × 16\); the data has \d+ tokens", seconds=600)
    session.wait_for(r"about \S+ s a step here", seconds=600)
    # Ctrl-C right after the last step skips what is left, and the command ends well.
    session.wait_for("step 2/2  loss", seconds=600)
    session.type("\x03")
    session.wait_for("sample skipped", seconds=600)
    assert session.end() == 0
    # The adapter is there and works.
    terminal("generate", "The Zorblax lamp", "--adapter", out, "-n", "2", "--seed", "1")
    assert terminal.last().sampling.adapter == "mine"


def test_one_store_for_the_terminal_two_servers_and_the_openai_client(terminal, tmp_path):
    env = {"GLASSLOOP_STORE": str(terminal.store)}
    memory = ("--kv-memory", "200MB", "--model-defaults")
    terminal("generate", "--chat", MARS, "--seed", "1", "-n", "6")
    own = terminal.last()
    with serving(*memory, env=env) as server, serving(*memory, "--keep", "3", env=env) as other:
        # The server has the terminal's runs: it lists, finds and titles them, in the same numbering.
        listed = server.get("/api/runs", params={"search": "moons", "brief": True}).json()["runs"]
        assert [(entry["id"], entry["title"], entry["chat"]) for entry in listed] == [(own.id, MARS, True)]
        over_http = server.get(f"/api/runs/{own.id}").json()["tokens"]
        assert [token["index"] for token in over_http] == list(range(len(own.tokens)))
        assert [token["piece"] for token in over_http] == [token.piece for token in own.tokens]
        why = server.get(f"/api/runs/{own.id}/explain/2").json()
        assert why["actual"]["id"] == own.tokens[2].id
        assert f"“{own.tokens[2].piece}” token 2 of run {own.id[:8]}" in terminal(
            *("explain", own.id, "--step", "2")
        )
        # A file of the run opens it, however often it is opened.
        own.save(tmp_path / "own.glass")
        opened = [import_(server, (tmp_path / "own.glass").read_bytes()) for _ in range(2)]
        assert [answer.json()["runs"][0]["id"] for answer in opened] == [own.id, own.id]
        made = _ask_as_a_backend_developer(server)
        _look_up_the_reason_of_an_answer(server, terminal, tmp_path)
        # The terminal has the server's runs, by their question, and replays them.
        assert "identical" in terminal("replay", made)
        assert "Is it warm in Oslo?" in terminal("runs", "list", "--search", "oslo")
        # The server with --keep 3 removes its own runs and nothing else.
        before = set(_ids(server))
        theirs = [
            other.post("/v1/completions", {"prompt": SEA, "max_tokens": 1}).headers["x-glassloop-run"]
            for _ in range(5)
        ]
        assert other.end(signal.SIGTERM) == 0
        assert set(_ids(server)) == before | set(theirs[2:])
        assert {entry.id for entry in Store(terminal.store).list()} == before | set(theirs[2:])


def _look_up_the_reason_of_an_answer(server: Server, terminal: Terminal, folder: Path) -> None:
    """Goes from the id of an answer, as an application has it in its log, to the reason of a token."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        asked = {"model": "smollm2-135m-instruct", "seed": 3, "temperature": 1.2, "max_tokens": 12}
        answer = client.chat.completions.create(messages=[{"role": "user", "content": MARS}], **asked)
        other = client.responses.create(model=asked["model"], input="Say hi.", max_output_tokens=4)
        again = client.responses.retrieve(other.id)
        assert again.output_text == other.output_text and again.id == other.id
    # The thread of the server that writes runs may be behind the answer.
    wait_until(lambda: Store(terminal.store).get(answer.id).finish_reason)
    own = Store(terminal.store).get(answer.id)
    assert answer.id == f"chatcmpl-{own.id}" and answer._request_id == own.id
    worst = min(range(len(own.tokens)), key=lambda place: own.tokens[place].raw_logprob)
    # In the terminal, the most surprising token is explained unless another one is named.
    told = terminal("explain", answer.id)
    assert f"token {worst} of run {own.id[:8]}" in told and "the most surprising one" in told
    assert "in the text" in terminal("runs", "worst", answer.id)
    # Over HTTP, and in the studio, whose page asks for the run by the same id.
    why = server.get(f"/api/runs/{answer.id}/explain/{worst}").json()
    assert why["taken"]["id"] == own.tokens[worst].id and why["sentence"] in told
    assert server.get(f"/api/runs/{answer.id}").json()["id"] == own.id
    # From another machine, without the store of the server: the same words.
    elsewhere = Terminal(folder / "elsewhere.db")
    assert told.endswith(elsewhere("explain", answer.id, "--server", server.url))
    assert "there is no run" in elsewhere("explain", answer.id, code=2)
    # What would another temperature have said?
    compared = terminal("compare", answer.id, "--with", "temperature=0.3", "--no-store")
    assert f"run {own.id[:8]} / temperature=0.3: " in compared


def test_an_operator_configures_backs_up_and_serves_two_models(terminal, tmp_path):
    # What a model needs is known before anything is set up; what cannot be had is one line with figures.
    assert "for weights, up to " in terminal("models", "check", "smollm2-135m-instruct")
    too_much = terminal("generate", SEA, "-n", "2", "--kv-memory", "900TB", code=2)
    assert re.search(r"glassloop: kv_memory is 921600\.0 GB; [\d.]+ GB are free.*: give less", too_much)
    # The options are in a file and the keys in another, which only the operator can read.
    keys, config = tmp_path / "keys", tmp_path / "serve.toml"
    keys.write_text("the-key-of-the-team\n")
    options = f'api-key-file = "{keys}"\nstore = "{terminal.store}"\nkv-memory = "150MB"\n'
    config.write_text(
        options + 'also = "gemma-3-270m"\nserved-model-name = ["small", "other=gemma-3-270m"]\n'
    )
    keys.chmod(0o644)
    assert "chmod 600 it" in terminal("serve", "--config", str(config), code=2)
    keys.chmod(0o600)
    env = {"GLASSLOOP_STORE": str(terminal.store)}
    with serving("--config", str(config), env=env) as server:
        key, url = "the-key-of-the-team", f"{server.url}/v1"
        with OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
            for name, model in (("small", "smollm2-135m-instruct"), ("other", "gemma-3-270m")):
                answer = client.completions.create(model=name, prompt=SEA, max_tokens=3, seed=1)
                assert answer.model == model and answer.choices[0].text
            with pytest.raises(NotFoundError, match="'small', 'gemma-3-270m', 'other'"):
                client.completions.create(model="gpt-5", prompt=SEA)
        # The store is copied while the server uses it, and the copy is one.
        copied = terminal("runs", "backup", str(tmp_path / "copy.db"))
        assert "copy.db: 2 runs of " in copied
        assert "exists already" in terminal("runs", "backup", str(tmp_path / "copy.db"), code=2)
        copy = Terminal(tmp_path / "copy.db")
        assert SEA in copy("runs", "list") and "identical" in copy("replay", copy.last().id)
        assert server.end() == 0


def _ids(server: Server) -> list[str]:
    return [entry["id"] for entry in server.get("/api/runs", params={"brief": True}).json()["runs"]]


def _ask_as_a_backend_developer(server: Server) -> str:
    """Uses a server through the openai client and returns the id of a run."""
    asked = {"model": "smollm2-135m-instruct", "seed": 7}
    user = [{"role": "user", "content": "Say hi."}]
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        ask = client.chat.completions
        # A chat and its stream are the same text; the answer names what determines it, and its run.
        raw = ask.with_raw_response.create(messages=user, max_tokens=6, **asked)
        whole, id = raw.parse(), raw.headers["x-glassloop-run"]
        parts = [
            part.choices[0].delta.content
            for part in ask.create(messages=user, max_tokens=6, stream=True, **asked)
        ]
        assert "".join(filter(None, parts)) == whole.choices[0].message.content
        assert whole.system_fingerprint
        # Its sampling is the model's own where the request says nothing.
        assert server.get(f"/api/runs/{id}").json()["sampling"]["temperature"] == 0.5
        # A tool is called, with arguments of its schema, and its result goes back without content beside it.
        warm = [{"role": "user", "content": "Is it warm in Oslo?"}]
        called = ask.create(messages=warm, tools=[WEATHER], tool_choice="required", **asked).choices[0]
        (call,) = called.message.tool_calls
        assert called.finish_reason == "tool_calls" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
        back = [*warm, called.message, {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}]
        assert called.message.content is None
        assert ask.create(messages=back, tools=[WEATHER], max_tokens=4, **asked).choices[0].message
        # Structured output.
        schema = {
            "type": "object",
            "properties": {"age": {"type": "integer", "maximum": 99}},
            "required": ["age"],
        }
        form = {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": schema | {"additionalProperties": False}},
        }
        told = ask.create(messages=user, response_format=form, max_tokens=60, temperature=0, **asked)
        assert json.loads(told.choices[0].message.content)["age"] <= 99
        # Mistakes are answered in plain words, with what is expected and without a path of the server.
        picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
        for wrong, says in (
            ({"messages": []}, "messages is empty; at least one item is expected"),
            (
                {"messages": [{"role": "user", "content": picture}]},
                "image_url is not supported: the model reads text only",
            ),
            ({"messages": user, "temperature": 300}, "a number from 0 to 100 is expected"),
            ({"messages": user, "extra_body": {"temprature": 1}}, "did you mean temperature?"),
        ):
            with pytest.raises(BadRequestError) as refused:
                ask.create(**asked, **wrong)
            assert says in refused.value.message and not re.search(r"/\w+/|\.gguf", refused.value.message)
        with pytest.raises(BadRequestError, match="only functions that the client calls are tools here"):
            client.responses.create(model=asked["model"], input="hi", tools=[{"type": "web_search"}])
    # curl without a content type.
    plain_text = httpx.post(f"{server.url}/v1/chat/completions", content=b"{}", timeout=60)
    assert plain_text.status_code == 415 and "send content-type: application/json" in plain_text.text
    return id
