"""`glassloop generate` as a person runs it: a real process, its two streams and its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import typer
from cli.terminal import on_terminal
from engine.random_runs import PROMPT as IDS
from engine.random_runs import small_llm
from hostile.tiny import tiny_gguf

from glassloop import Sampling
from glassloop.cli.batch import BatchEntry, print_batch
from glassloop.cli.options import OutputFlags
from glassloop.cli.sampling_text import sampling_words
from glassloop.decode.luck import list_seed
from glassloop.engine import generation
from glassloop.engine.generation import Interrupted
from glassloop.model.loader import load_tokenizer
from glassloop.model.registry import DEFAULT_MODEL

GLASSLOOP = [sys.executable, "-m", "glassloop"]
PROMPT = "The capital of France is"


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GLASSLOOP, *arguments], capture_output=True, text=True, timeout=120, **options)


def test_the_text_alone_is_on_stdout_and_one_line_on_stderr():
    done = run("generate", PROMPT, "--temperature", "0", "--max-tokens", "3")
    assert done.returncode == 0
    assert done.stdout.startswith(" Paris")
    assert re.fullmatch(r".*5 \+ 3 tokens.*seed \d+.*ended by length \('max_tokens'\)\n", done.stderr)


def test_json_has_the_whole_run():
    done = run("generate", PROMPT, "--seed", "5", "-n", "3", "--json")
    answer = json.loads(done.stdout)
    assert {"text", "token_ids", "tokens", "finish_reason", "usage", "timings", "seed", "model"} <= set(
        answer
    )
    assert answer["seed"] == 5 and len(answer["token_ids"]) == 3 and answer["finish_reason"] == "length"


def test_the_op_set_can_be_chosen():
    done = run("generate", "Hi", "-n", "1", "--no-store", "--ops", "reference")
    assert " · reference ops · " in done.stderr
    assert "'gpu'; one of torch, native, reference" in run("generate", "Hi", "--ops", "gpu").stderr


def test_every_option_of_sampling_is_a_flag():
    from dataclasses import fields

    shown = run("generate", "--help-all", env=os.environ | {"COLUMNS": "200"}).stdout
    for field in fields(Sampling):
        flag = {"n": "samples"}.get(field.name, field.name.replace("_", "-"))
        assert f"--{flag} " in shown


def test_flags_reach_the_sampling(tmp_path):
    schema = tmp_path / "word.json"
    schema.write_text('{"enum": ["red", "green"]}')
    flags = [
        "--temperature",
        "0.5",
        "--top-p",
        "0.9",
        "--logit-bias",
        "42=-1.5",
        "--logit-bias",
        "7=2",
        "--stop",
        "END",
        "--stop",
        "x",
    ]
    flags += ["--stop-token-ids", "9", "--json-schema", str(schema), "--no-include-stop"]
    flags += ["--stages", "logit_bias,grammar,top_p,temperature", "--logprobs", "2", "--timeout", "60"]
    answer = json.loads(run("generate", PROMPT, "-n", "9", "--json", *flags).stdout)
    sampling = answer["sampling"]
    assert sampling["logit_bias"] == {"42": -1.5, "7": 2.0} and sampling["stop"] == ["END", "x"]
    assert sampling["stop_token_ids"] == [9] and sampling["stages"][-1] == "temperature"
    assert answer["text"] in ('"red"', '"green"') and answer["finish_reason"] == "stop"
    assert all(len(token["alternatives"]) == 2 for token in answer["tokens"])


def test_json_is_drawn_while_it_is_generated_and_stays_as_it_is_in_a_pipe(tmp_path):
    schema = (
        '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}'
    )
    flags = ("The capital of France as JSON: ", "--json-schema", schema, "--seed", "1", "--show", "json")
    store = str(tmp_path / "runs.db")
    plain = run("generate", *flags, env=os.environ | {"GLASSLOOP_STORE": store}).stdout
    code, seen = on_terminal("generate", *flags, GLASSLOOP_STORE=store, NO_COLOR="1")
    value = json.loads(plain)
    drawn = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen).replace("\r", "")
    whole = json.dumps(value, indent=2)
    assert code == 0 and whole in drawn and value["city"]
    assert '{}{\n  "city": "' in drawn[: drawn.index(whole)]  # drawn again with each token
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1  # the cursor is given back


def test_a_text_that_is_not_json_is_shown_as_it_is(tmp_path):
    flags = (PROMPT, "--temperature", "0", "-n", "6", "--show", "json")
    code, seen = on_terminal("generate", *flags, GLASSLOOP_STORE=str(tmp_path / "runs.db"))
    assert code == 0 and " Paris." in seen and seen.count("\x1b[?25h") == 1


def test_the_prompt_can_come_from_stdin():
    done = run("generate", "-", "--temperature", "0", "-n", "1", input=PROMPT)
    assert done.stdout == " Paris\n"
    wrong = subprocess.run([*GLASSLOOP, "generate", "-"], capture_output=True, input=b"ab\xff", timeout=120)
    assert wrong.returncode == 2 and b"stdin is not UTF-8 text: byte 2 is 0xFF" in wrong.stderr


def test_many_prompts_of_a_file_are_one_batch(tmp_path):
    file, store = tmp_path / "prompts.jsonl", str(tmp_path / "runs.db")
    more = {"prompt": "One, two,", "max_tokens": 2, "seed": 7, "n": 2, "temperature": 1}
    file.write_text(f"{PROMPT}\r\n\n{json.dumps(more)}\n")
    flags = ("--temperature", "0", "-n", "3", "--from")
    environment = os.environ | {"GLASSLOOP_STORE": store}
    done = run("generate", *flags, str(file), "--json", env=environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    alone = json.loads(run("generate", PROMPT, *flags[:-1], "--json", "--no-store").stdout)
    assert first["token_ids"] == alone["token_ids"] and first["prompt"] == PROMPT
    assert len(second["token_ids"]) == 2 and second["seed"] == 7 and len(second["samples"]) == 2
    assert len(json.loads(run("runs", "list", "--json", env=environment).stdout)) == 3
    done = run("generate", *flags, "-", "--no-store", input=f"{PROMPT}\n{PROMPT}\n")
    assert done.stdout == f"── 1 of 2 ──\n{first['text']}\n── 2 of 2 ──\n{first['text']}\n"
    assert "2 prompts · 6 tokens in" in done.stderr and done.stderr.count("\n") == 1


def test_the_prompts_of_a_file_have_a_seed_each():
    flags = ("--from", "-", "--seed", "7", "-n", "8", "--json", "--no-store")
    lines = f'{PROMPT}\n{PROMPT}\n{{"prompt": "{PROMPT}", "seed": 7}}\n'
    first, second, third = map(json.loads, run("generate", *flags, input=lines).stdout.splitlines())
    assert first["seed"] == third["seed"] == 7 and first["token_ids"] == third["token_ids"]
    assert second["seed"] == list_seed(7, 1) and second["token_ids"] != first["token_ids"]


def test_a_prompt_that_fails_does_not_end_the_others():
    lines = f'{{"prompt": "x", "regex": "(a"}}\n{PROMPT}\n'
    flags = ("--from", "-", "--temperature", "0", "-n", "1", "--json", "--no-store")
    done = run("generate", *flags, input=lines)
    failed, good = map(json.loads, done.stdout.splitlines())
    assert failed["finish_reason"] == "error" and good["text"] == " Paris"
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("glassloop: -, line 1: regex cannot be used")


def test_ctrl_c_in_a_batch_keeps_what_was_generated(monkeypatch, capsys):
    """Interrupted after the first of two prompts."""

    def first_alone(engine, requests, progress):
        generation_complete(engine, requests[:1], progress)
        raise Interrupted(requests[0].runs)

    generation_complete = generation.complete
    monkeypatch.setattr(generation, "complete", first_alone)
    entries = [BatchEntry("prompts, line 1", IDS, None, {"max_tokens": 2})] * 2
    with pytest.raises(typer.Exit) as ended:
        print_batch(small_llm(), entries, OutputFlags(json_output=True, store=False))
    (line,) = capsys.readouterr().out.splitlines()
    assert ended.value.exit_code == 130 and json.loads(line)["prompt_ids"] == list(IDS)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a\n{oops\n", "prompts, line 2: begins with '{' and is not JSON"),
        ('{"prompt": "a", "temprature": 1}', "prompts, line 1: temprature is not a sampling option"),
        ('{"text": "a"}', "prompts, line 1: prompt is None; a text or a list of token ids is expected"),
        ('a\n{"prompt": ""}', "prompts, line 2: prompt is empty"),
        ("\n \n", "prompts has no prompts"),
    ],
)
def test_a_mistake_in_a_file_of_prompts_names_its_line(tmp_path, lines, said):
    (tmp_path / "prompts").write_text(lines)
    done = run("generate", "--from", "prompts", "--no-store", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"glassloop: {said}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either a prompt or --from FILE is expected"),
        (["x", "--from", "y"], "either a prompt or --from FILE is expected"),
        (["--from", "nofile"], "nofile: cannot be read"),
        (["x", "--model", "smollm2-135m-instuct"], "did you mean 'smollm2-135m-instruct'"),
        (["x", "--model", "./not/there.gguf"], "not/there.gguf"),
        (["x", "--temperature", "-1"], "temperature is -1.0"),
        (["x", "--max-tokens", "0"], "max_tokens is 0"),
        (["x", "--seed", "-4"], "seed is -4"),
        ([""], "prompt is empty"),
        (["x", "--top-p", "1.5"], "top_p is 1.5"),
        (["x", "--logit-bias", "a=1"], "--logit-bias is 'a=1'; ID=NUMBER"),
        (["x", "--json-schema", '{"type": "objekt"}'], "json_schema cannot be used"),
        (["x", "--json-schema", "no.json"], "--json-schema: 'no.json' is neither an existing file nor JSON"),
        (["x", "--regex", "(a"], "regex cannot be used"),
        (["x", "--stages", "top_kk"], "did you mean top_k"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, said):
    done = run("generate", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_keeps_the_text_so_far():
    child = subprocess.Popen(
        [*GLASSLOOP, "generate", PROMPT, "--temperature", "0", "-n", "4000", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    assert child.stdout.read(40).startswith(b" Paris")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert out.endswith(b"\n") and b"ended by cancelled" in err and b"Traceback" not in err


QUESTION = "How many moons does Mars have?"


def test_chat_asks_the_model_with_its_template():
    flags = ("--temperature", "0", "-n", "12", "--json", "--no-store")
    asked = json.loads(run("generate", "--chat", QUESTION, *flags).stdout)
    system = json.loads(run("generate", "-", "--system", "Be brief.", *flags, input=QUESTION).stdout)
    messages = [{"role": "user", "content": QUESTION}]
    assert asked["messages"] == messages and asked["prompt"] is None
    assert system["messages"] == [{"role": "system", "content": "Be brief."}, *messages]
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    assert asked["prompt_ids"] == tokenizer.encode_chat(messages)
    assert system["prompt_ids"] == tokenizer.encode_chat(system["messages"])
    lines = [QUESTION, json.dumps({"messages": messages}), json.dumps({"messages": system["messages"]})]
    done = run("generate", "--from", "-", "--system", "Be brief.", *flags, input="\n".join(lines))
    answers = [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]
    assert answers == [system["token_ids"]] * 3 != [asked["token_ids"]] * 3


def test_a_line_with_messages_is_a_chat_without_a_flag_too():
    line = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0})
    done = run("generate", "--from", "-", "-n", "4", "--json", "--no-store", input=f"{line}\n{QUESTION}\n")
    chat, text = map(json.loads, done.stdout.splitlines())
    assert chat["messages"][0]["content"] == QUESTION and text["prompt"] == QUESTION


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": []}', "messages is empty"),
        ('{"messages": "Hi"}', "messages must be a list of messages, not str"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content must be text"),
        ('{"messages": [{"role": "user", "content": "a"}], "prompt": "b"}', "prompt and messages are both"),
    ],
)
def test_a_mistake_in_messages_names_its_line(line, said):
    done = run("generate", "--from", "-", "--no-store", input=line)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"glassloop: -, line 1: {said}")


def test_chat_needs_a_template(tmp_path):
    file, path = tiny_gguf(), tmp_path / "tiny.gguf"
    kept = tuple(entry for entry in file.entries if entry.key != "tokenizer.chat_template")
    path.write_bytes(replace(file, entries=kept).to_bytes())
    for flags in (["--chat", "hello"], ["hello", "--system", "x"], ["--from", "-", "--chat"]):
        done = run("generate", *flags, "--model", str(path), "--no-store", input="hello")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "tiny.gguf has no chat template, which --chat needs" in done.stderr
    done = run("compare", "hello", "--chat", "--with", "greedy", "--model", str(path), "--no-store")
    assert done.returncode == 2 and "which --chat needs" in done.stderr


def test_the_statistics_say_how_tokens_were_chosen():
    def said(*flags: str) -> str:
        return run("generate", PROMPT, "-n", "1", "--no-store", *flags).stderr

    assert "· temperature 0.5 (the model's default) · seed 4 ·" in said("--seed", "4")
    assert "· temperature 1.5, min-p 0.1 · seed" in said("--temperature", "1.5", "--min-p", "0.1")
    assert "· temperature 1 · seed" in said("--no-model-defaults")


def test_the_words_for_how_tokens_are_chosen():
    model = Sampling(temperature=0.6, top_k=20, top_p=0.9)
    assert sampling_words(model, model) == "temperature 0.6, top-k 20, top-p 0.9 (the model's defaults)"
    changed = Sampling(temperature=1, top_k=20, top_p=0.9, repetition_penalty=1.1)
    assert sampling_words(changed, model) == (
        "temperature 1, repetition penalty 1.1, top-k 20, top-p 0.9 (the model's defaults)"
    )
    assert sampling_words(Sampling(temperature=0, top_k=20), model) == "greedy"
    assert sampling_words(Sampling(temperature=0, dry_multiplier=0.8), model) == "greedy, dry multiplier 0.8"
    assert sampling_words(Sampling(beam_width=4), model) == "4 beams"
    assert sampling_words(Sampling(), Sampling()) == "temperature 1"


def test_the_record_has_the_options_of_the_model():
    record = json.loads(run("generate", PROMPT, "-n", "1", "--json", "--no-store").stdout)
    assert record["sampling"]["temperature"] == 0.5
    ways = ("--with", "greedy", "--with", "default", "--with", "temperature=1", "--with", "beam_width=2")
    compared = json.loads(run("compare", PROMPT, *ways, "-n", "2", "--json", "--no-store").stdout)
    assert [each["sampling"]["temperature"] for each in compared] == [0, 0.5, 1, 1]


@pytest.mark.parametrize("command", [f"generate '{PROMPT}' --temperature 0 -n 40 --no-store", "--help"])
def test_a_reader_that_goes_away_is_not_an_error(command):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m glassloop {command} | head -c 3; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and len(done.stdout) == 3
    assert "Traceback" not in done.stderr and "Error" not in done.stderr
