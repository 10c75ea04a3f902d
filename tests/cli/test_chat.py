"""`glassloop chat` as a person uses it: a terminal, keys and Ctrl-C, and a pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from cli.terminal import GLASSLOOP, Session, run

from glassloop import LLM, Sampling
from glassloop.cli.chat.conversation import Conversation
from glassloop.cli.chat.drawing import draw
from glassloop.cli.terminal import print_json
from glassloop.errors import GlassloopError
from glassloop.record.format.glass_file import read


def piped(lines: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GLASSLOOP, "chat", *arguments],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def llm():
    with LLM() as made:
        yield made


@pytest.fixture
def talk(llm):
    return Conversation(llm, Sampling(seed=3, max_tokens=12, min_tokens=8))


def answer(talk: Conversation, question: str) -> None:
    request = talk.ask(question)
    list(talk.llm.follow(request))
    talk.add(question, request.runs[0])


# ── on a terminal ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_on_a_terminal(tmp_path):
    saved = tmp_path / "talk.glass"
    chat = Session("chat", "--temperature", "0", "-n", "400", GLASSLOOP_STORE=str(tmp_path / "runs.db"))
    chat.wait_for(r"› ")
    chat.type("Which is the capital of France?\n")
    first = chat.wait_for(r"(\d+) \+ \d+ tokens · 0 cached[^›]*› ")
    assert "Paris" in first

    chat.type("/why Paris\n")
    why = chat.wait_for(r"greedy has no luck\.")
    assert "“ Paris” won because it was the likeliest" in why.replace("\n", " ") and "score" in why
    chat.wait_for("› ")
    chat.type("/alts Paris\n")
    alts = chat.wait_for(r"all others.*\n")
    assert re.search(r"→\s+“ Paris”", alts)
    chat.wait_for("› ")

    chat.type("/fork Paris Lyon\n")
    fork = chat.wait_for(r"\d+ cached[^›]*› ")
    assert "Lyon" in fork and int(re.search(r"(\d+) cached", fork)[1]) > 30

    chat.type(f"/diff {re.search('run ([0-9a-f]{8})', first)[1]}\n")
    part = chat.wait_for(r"given by the caller")
    assert "' Paris' against ' Lyon'" in part.replace("\n", " ")
    chat.wait_for("› ")

    chat.type("/diff\n")
    chat.wait_for(r"the id of another answer is expected: /diff 84f584fc; /tree shows the\s+ids\s+› ")

    chat.type("/set temperature 900\n")
    chat.wait_for(r"glassloop: temperature is 900; a number from .* is expected\s+› ")
    chat.type("/set temprature 1\n")
    chat.wait_for(r"did you mean temperature\?\s+› ")
    chat.type("/set temperature 0.9\n")
    chat.wait_for(r"temperature = 0.9[^›]*› ")
    chat.type("/set min_tokens 400\n")
    chat.wait_for(r"min_tokens = 400.*\s+› ")

    chat.type("Tell me a long story.\n")
    chat.wait_for(r"long story\.\n\s*\S+\s+\S+\s+\S")
    chat.type("\x03")
    stopped = chat.wait_for(r"stopped · (\d+) \+ (\d+) tokens · (\d+) cached[^›]*› ")
    assert 0 < int(re.search(r"\+ (\d+) tokens", stopped)[1]) < 400
    assert chat.child.poll() is None

    chat.type("/set min_tokens 0\n")
    chat.wait_for("› ")
    chat.type('"""\nAnd now\nstop.\n"""\n')
    chat.wait_for(r"\d+ \+ \d+ tokens[^›]*\n\n› ")
    chat.type("/tree\n")
    tree = chat.wait_for("← here")
    assert "(stopped)" in tree and "from token" in tree and "› And now stop." in tree
    chat.wait_for("› ")
    chat.type(f"/save {saved}\n")
    chat.wait_for(r"4\s+runs\s+› ")
    chat.type("/nothing\n")
    chat.wait_for(r"/nothing is not a command.*\s+› ")
    chat.type("half a line")
    chat.wait_for("half a line")
    chat.interrupt(r"ends the chat\s+› ")  # and the half line is gone
    chat.type("\x04")
    assert chat.end() == 0 and b"Traceback" not in chat.raw

    runs = read(saved)
    assert [bool(one.parent) for one in runs].count(True) == 1
    assert any(one.finish_reason == "cancelled" for one in runs)
    history = (tmp_path / "chat_history").read_text()
    assert "Which is the capital of France?" in history and "/why Paris" in history


def test_what_a_model_writes_cannot_steer_the_terminal(tmp_path):
    """Forces the tokens of an escape sequence that would clear the screen, a bell and a carriage return."""
    allowed = ["--regex", r"\x1b\[2J\x07\r!"]
    chat = Session("chat", *allowed, "--no-store")
    chat.wait_for("› ")
    chat.type("Go.\n")
    shown = chat.wait_for("!")
    assert r"\x1b[2J\x07\x0d!" in shown
    chat.wait_for("› ")
    assert b"\x1b[2J" not in chat.raw and b"\x07" not in chat.raw
    chat.type("/quit\n")
    assert chat.end() == 0

    one = Session("generate", "Go", *allowed, "--no-store")
    assert one.end() == 0
    assert r"\x1b[2J\x07\x0d!" in one.text and b"\x1b[2J" not in one.raw
    assert run("generate", "Go", *allowed, "--no-store").stdout.encode().endswith(b"\x1b[2J\x07\n!\n")


def test_json_is_the_same_json_and_cannot_steer_a_terminal(monkeypatch, capsys):
    strange = {"text": "a\x1b[2J\x7f\x9b\u202e\n日本"}
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        print_json(strange)
        shown = capsys.readouterr().out
        assert json.loads(shown) == strange and "日本" in shown
        assert not re.search("[\x7f-\x9f\u202e]", shown)


# ── in a pipe ──────────────────────────────────────────────────────────────────────────────────────────────


def test_in_a_pipe_answers_alone_are_on_stdout(tmp_path):
    lines = ["Say hi.", "And \\", "again?", "/save " + str(tmp_path / "a.json")]
    done = piped(lines, "--temperature", "0", "-n", "5", "--no-store", "--system", "You are brief.")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr and "›" not in done.stdout
    saved = json.loads((tmp_path / "a.json").read_text())
    said = [(each["role"], each["content"]) for each in saved["messages"]]
    assert [role for role, _ in said] == ["system", "user", "assistant", "user", "assistant"]
    assert said[0][1] == "You are brief." and said[3][1] == "And \nagain?"
    assert done.stdout == f"{said[2][1]}\n{said[4][1]}\n"
    assert "run " not in done.stderr and len(re.findall(r"· seed \d+", done.stderr)) == 2


def test_the_worst_tokens_of_an_answer():
    done = piped(["Say hi.", "/worst 2", "/worst none"], "--seed", "1", "-n", "8", "--no-store")
    assert "The most surprising tokens" in done.stdout and "surprise" in done.stdout
    assert "luck" in done.stdout and done.stdout.count(" bits ") >= 2
    assert done.returncode == 2 and "count is 'none'; a number of tokens from 1 up is expected" in done.stderr


def test_an_answer_is_shown_with_its_conversation(tmp_path):
    file = tmp_path / "talk.glass"
    piped(["Say hi.", "Say bye.", f"/save {file}"], "-n", "2", "--no-store", "--system", "Be brief.")
    saved = read(file)
    talk = saved[0].messages
    assert [message["role"] for message in talk] == ["system", "user", "assistant", "user"]
    shown = run("runs", "show", str(file)).stdout
    first = f"system: Be brief.\nuser: Say hi.\nassistant: {talk[2]['content']}\n"
    assert f"{first}user: Say bye.\nassistant: {saved[0].text}\n" in shown and "<|im_start|>" not in shown
    saved[0].messages = None  # as in files of older versions
    saved[0].save(file)
    shown = run("runs", "show", str(file)).stdout
    assert "<|im_start|>user\nSay bye.<|im_end|>\n<|im_start|>assistant\n" in shown
    saved[0].model = "nobody/has-this"
    saved[0].save(file)
    assert f"\n({len(saved[0].prompt_ids)} token ids)\n" in run("runs", "show", str(file)).stdout


def test_a_mistake_in_a_pipe_ends_nothing_and_is_told_at_the_end():
    done = piped(["/why", "Hi.", "/why 99", "/set nonsense 1", "Bye."], "-n", "2", "--no-store")
    assert done.returncode == 2 and done.stderr.count("· seed") == 2
    for said in ("there is no answer yet", "a token from 0 to 1 is expected", "nonsense is not a sampling"):
        assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["-n", "0"], "max_tokens is 0"), (["--model", "nope"], "nope"), (["--seed", "-1"], "seed is -1")],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments, said):
    done = piped([], *arguments)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_bytes_that_are_no_text_are_an_error_of_that_line():
    environment = os.environ | {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"}
    command = [*GLASSLOOP, "chat", "-n", "2", "--no-store"]
    done = subprocess.run(command, input=b"\xff\n", capture_output=True, timeout=120, env=environment)
    assert done.returncode == 2 and b"byte 0xFF" in done.stderr and b"Traceback" not in done.stderr


# ── the conversation ───────────────────────────────────────────────────────────────────────────────────────


def test_each_turn_finds_all_that_was_before_in_the_cache(talk):
    answer(talk, "Say hi.")
    for question in ("And in French?", "Why? 🙂", "日本語?"):
        before = talk.last.run
        answer(talk, question)
        own = talk.last.run
        length = len(before.prompt_ids) + len(before.tokens)
        # Cached up to the last token but one: the last token of an answer is never computed.
        assert own.prompt_ids[:length] == before.prompt_ids + before.token_ids
        assert own.usage.cached_tokens >= length - 1
        assert talk.llm.tokenizer.decode(own.prompt_ids).endswith(
            f"{question}<|im_end|>\n<|im_start|>assistant\n"
        )


def test_an_answer_stays_the_tokens_that_were_chosen(llm):
    """Letter by letter, which is not how the tokenizer splits that text."""
    letters = [llm.tokenizer.id_of(letter) for letter in "the"]
    talk = Conversation(llm, Sampling(seed=3, max_tokens=12, allowed_token_ids=letters))
    answer(talk, "Say hi.")
    first = talk.last.run
    assert llm.tokenizer.encode(first.text) != first.token_ids
    answer(talk, "Again.")
    length = len(first.prompt_ids) + len(first.tokens)
    assert talk.last.run.prompt_ids[:length] == first.prompt_ids + first.token_ids
    assert talk.last.run.usage.cached_tokens >= length - 1


def test_forks_and_rewinds_lose_nothing_and_the_talk_goes_on_from_them(talk):
    answer(talk, "Say hi.")
    old = talk.last
    request = talk.fork(3, **talk.named_token(3, "cat"))
    list(talk.llm.follow(request))
    new = talk.add(old.question, request.runs[0], beside=old)
    assert new.run.token_ids[:3] == old.run.token_ids[:3] and new.run.tokens[3].source == "forced"
    short = talk.rewind(2)
    assert [turn.run for turn in talk] == [old.run, new.run, short.run] and talk.at is short
    answer(talk, "More?")
    assert talk.last.above is short and talk.messages[1]["content"] == short.run.text
    assert talk.go(old.run.id[:6]) is old and talk.messages[-1]["content"] == old.run.text
    with pytest.raises(GlassloopError, match="/tree"):
        talk.go("nothing")


def test_a_token_is_named_by_number_or_text(talk):
    answer(talk, "Count to ten.")
    tokens = talk.last.run.tokens
    assert talk.place("0") == 0 and talk.place("-1") == len(tokens) - 1
    assert tokens[talk.place(tokens[4].piece.strip() or '" "')].piece.strip() == tokens[4].piece.strip()
    surprise = [token.raw_logprob for token in tokens]
    assert surprise[talk.place(None)] == min(surprise)
    for name in ("99", "-99", "zebra-crossing"):
        with pytest.raises(GlassloopError):
            talk.place(name)


def test_a_text_of_several_tokens_is_an_edit(talk):
    answer(talk, "Say hi.")
    assert set(talk.named_token(0, "Llanfairpwllgwyngyll")) == {"text"}
    assert talk.named_token(0, '" Paris"') == {"token": talk.llm.tokenizer.id_of(" Paris")}
    # The text of a special token stays text.
    assert talk.named_token(0, '"<|im_end|>"') == {"text": "<|im_end|>"}


def test_many_samples_are_refused(llm):
    with pytest.raises(GlassloopError, match="samples is 2"):
        Conversation(llm, Sampling(n=2))


def test_the_tree_says_how_a_long_answer_ended(talk):
    answer(talk, "Tell me a long story about the sea and the wind.")
    shown = draw(talk)
    assert "… (cut by max_tokens)  ← here" in shown and len(talk.last.run.text) > 30
    assert max(map(len, shown.splitlines())) < 80
