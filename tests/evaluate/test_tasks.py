"""Tasks: what is read from files, what is refused by name, and what an evaluation makes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from glassloop import LLM
from glassloop.errors import GlassloopError
from glassloop.evaluate.__main__ import main
from glassloop.evaluate.evaluation import Evaluation, evaluate
from glassloop.evaluate.evaluation_task import EvaluationTask
from glassloop.evaluate.find_task import find_task
from glassloop.evaluate.record import read
from glassloop.search.verify import sandbox
from glassloop.search.verify.likelihood import encode_pair, judged_by, likelihood, score_each


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ---- files


def test_a_file_of_prompts_and_answers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"prompt": "1+1?", "answer": 2},
        {"messages": [{"role": "user", "content": "10*100?"}], "answer": "$1,000", "id": "x", "group": "b"},
        {"prompt": "Code", "tests": ["assert f() == 1"]},
        {"question": "2+2?", "answer": "4"},
    )
    task = find_task(str(path), extract="number")
    assert [item.id for item in task.items] == ["0", "x", "2", "3"]
    assert [item.answer for item in task.items] == ["2", "1000", None, "4"]
    assert task.items[3].question == "2+2?"
    assert task.correct(task.items[0], "it is 2.0", task.value(task.items[0], "it is 2.0"))
    assert task.items[2].verify is not None and task.items[2].verify("def f(): return 1").passed


def test_another_extractor_takes_the_place_of_the_tasks_own(tmp_path: Path) -> None:
    task = find_task("gsm8k", extract="last_line")
    assert task.value(task.items[0], "It is 5.\nSix") == "Six"
    with pytest.raises(GlassloopError, match="extract is 'nothing'"):
        find_task("gsm8k", extract="nothing")
    rows = [{"prompt": "Which?", "choices": ["a", "b"], "answer": "a"}]
    with pytest.raises(GlassloopError, match="extract is given; t has choices"):
        find_task(str(write(tmp_path / "t.jsonl", *rows)), extract="number")


def test_choices_are_named_by_text_letter_or_number(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Which?", "choices": ["a dog", "a cat"], "answer": answer} for answer in ("a cat", "b", 1)
    ]
    task = find_task(str(write(tmp_path / "t.jsonl", *rows)))
    assert [item.answer for item in task.items] == ["1", "1", "1"]
    write(tmp_path / "t.jsonl", *rows, {"prompt": "And?", "answer": "x"})
    with pytest.raises(GlassloopError, match="choices are missing in item 3"):
        find_task(str(tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "x"}, "item 1: answer is None; a text or a number is expected"),
        ({"prompt": 1, "answer": "x"}, "item 1: prompt is 1; a text, or messages"),
        ({"prompt": "x", "answer": "x", "anwser": 1}, "item 1: anwser is not a field"),
        ({"prompt": "x", "answer": "z", "choices": ["a", "b"]}, "item 1: answer is 'z'; one of the choices"),
        ({"prompt": "x", "answer": True}, "answer is True"),
        ({"prompt": "x", "question": "x", "answer": 1}, "question is given beside prompt"),
        ({"prompt": "x", "tests": "assert 1", "answer": "x"}, "tests is given beside answer"),
        ([1], "line 1: is \\[1\\]; an object is expected"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: dict[str, object], told: str) -> None:
    path = write(tmp_path / "t.jsonl", row)
    with pytest.raises(GlassloopError, match=told):
        find_task(str(path))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "task is 'nothing'; a task file or one of gsm8k"),
        ("bbh", "data is missing: BIG-Bench Hard is not in the package"),
        ("gym:no_such_thing", "gym:no_such_thing is unknown|need it"),
        ("missing.jsonl", "cannot read missing.jsonl"),
    ],
)
def test_an_unknown_task_is_refused_in_words(name: str, told: str) -> None:
    with pytest.raises(GlassloopError, match=told):
        find_task(name)


def test_the_built_in_tasks_are_whole() -> None:
    gsm8k, ifeval = find_task("gsm8k"), find_task("ifeval")
    assert (len(gsm8k.items), len(ifeval.items)) == (1319, 541)
    assert gsm8k.items[0].answer == "18" and all(item.answer is not None for item in gsm8k.items)
    assert gsm8k.correct(gsm8k.items[2], "", gsm8k.value(gsm8k.items[2], "so \\(\\boxed{70,000}\\)."))
    assert ifeval.digest == find_task("ifeval:loose").digest


def test_bbh_knows_how_the_answers_of_each_part_look(tmp_path: Path) -> None:
    rows = [{"task": "dates", "input": f"q{n}", "target": f"({'ABC'[n % 3]})"} for n in range(9)]
    rows += [{"task": "counting", "input": f"q{n}", "target": str(n)} for n in range(9)]
    rows += [{"task": "lies", "input": f"q{n}", "target": ("yes", "no")[n % 2]} for n in range(9)]
    rows += [{"task": "sorting", "input": f"q{n}", "target": f"apple bee{n}"} for n in range(9)]
    task = find_task("bbh", data=write(tmp_path / "bbh.jsonl", *rows))
    said = {"dates": "The answer is (A).", "counting": "The answer is 0.", "lies": "The answer is Yes."}
    said["sorting"] = "The answer is **apple bee0**."
    for item in task.items[::9]:
        text = said[item.group]
        assert task.correct(item, text, task.value(item, text)), item
        assert not task.correct(item, "I do not know.", task.value(item, "I do not know."))
    assert len(find_task("bbh:lies", data=tmp_path / "bbh.jsonl").items) == 9


# ---- lm-evaluation-harness

CHOICE = """
task: animals
output_type: multiple_choice
dataset_path: json
dataset_kwargs: {data_files: {test: animals.jsonl}}
test_split: test
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: label
doc_to_choice: "{{choices.text}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}, {metric: acc_norm}]
metadata: {version: 1.0}
"""
GENERATION = """
task: sums
output_type: generate_until
doc_to_text: "{{a}} plus {{b}} is"
doc_to_target: "{{a + b}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
filter_list:
  - name: first
    filter: [{function: regex, regex_pattern: "(-?[0-9]+)"}, {function: take_first}]
metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: false}]
"""


def test_a_multiple_choice_task_of_the_harness(tmp_path: Path) -> None:
    write(
        tmp_path / "animals.jsonl",
        {"question": "Which barks?", "choices": {"text": ["cat", "it's a dog"]}, "label": 1},
        {"question": "Which purrs?", "choices": {"text": ["cat", "dog"]}, "label": "cat"},
    )
    (tmp_path / "animals.yaml").write_text(CHOICE)
    task = find_task(str(tmp_path / "animals.yaml"))
    assert task.is_choice and task.name == "animals"
    assert task.items[0].question == "Question: Which barks?\nAnswer:"
    assert [(item.choices, item.answer) for item in task.items] == [
        (("cat", "it's a dog"), "1"),
        (("cat", "dog"), "0"),
    ]


def test_a_generation_task_of_the_harness(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(GENERATION)
    data = write(tmp_path / "sums.jsonl", {"a": 2, "b": 3}, {"a": 10, "b": -4})
    task = find_task(str(tmp_path / "sums.yaml"), data=data)
    assert [item.question for item in task.items] == ["2 plus 3 is", "10 plus -4 is"]
    assert (task.stop, task.max_tokens, task.options) == (("\n",), 12, {"temperature": 0.0})
    assert task.correct(task.items[0], " 5 and not 6", None)
    assert not task.correct(task.items[1], " 5", None)
    with pytest.raises(GlassloopError, match="data is missing"):
        find_task(str(tmp_path / "sums.yaml"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("process_docs: !function utils.process", "Python functions and included files are not supported"),
        ("include: other.yaml", "include in .* is not supported"),
        ("num_fewshot: 5", "num_fewshot is 5; only 0 is supported"),
        ("output_type: loglikelihood_rolling", "output_type is 'loglikelihood_rolling'"),
        ("metric_list: [{metric: bleu}]", "metric_list has 'bleu'"),
        ("generation_kwargs: {num_beams: 4}", "generation_kwargs.num_beams is not supported"),
        ("filter_list: [{filter: [{function: majority_vote}]}]", "one regex and take_first are expected"),
        ("doc_to_text: '{{ a.__class__ }}{{ raise_exception(\"no\") }}'", "doc_to_text of .*no"),
        ("doc_to_text: '{{ 1 +'", "doc_to_text of"),
        ("a: [", "is not YAML"),
        ("doc_to_text: '{% for i in range(10**9) %}x{% endfor %}'", "doc_to_text of"),
    ],
)
def test_what_would_change_a_task_of_the_harness_is_refused(tmp_path: Path, line: str, told: str) -> None:
    name = line.partition(":")[0]
    kept = [each for each in GENERATION.splitlines() if not each.startswith(f"{name}:")]
    if name == "filter_list":
        kept = [each for each in kept if not each.startswith("  ")]
    (tmp_path / "t.yaml").write_text("\n".join([*kept, line]))
    data = write(tmp_path / "t.jsonl", {"a": 2, "b": 3})
    with pytest.raises(GlassloopError, match=told):
        find_task(str(tmp_path / "t.yaml"), data=data)


@pytest.mark.parametrize("field", ["doc_to_text", "doc_to_target", "generation_kwargs", "filter_list"])
def test_aliases_in_a_task_of_the_harness_are_refused(tmp_path: Path, field: str) -> None:
    kept = [each for each in GENERATION.splitlines() if not each.startswith((f"{field}:", "  "))]
    levels = [f"  l{place}: &l{place} [{', '.join([f'*l{place - 1}'] * 9)}]" for place in range(1, 10)]
    written = ["metadata:", "  l0: &l0 [x]", *levels, *kept, f"{field}: *l9"]
    (tmp_path / "t.yaml").write_text("\n".join(written))
    with pytest.raises(GlassloopError, match=r"is not YAML: aliases .* are not supported"):
        find_task(str(tmp_path / "t.yaml"), data=write(tmp_path / "t.jsonl", {"a": 2, "b": 3}))


@pytest.mark.parametrize(
    "given", ["../outside.jsonl", "link.jsonl", "{tmp_path}/outside.jsonl", "in/../../outside.jsonl"]
)
def test_data_outside_the_folder_of_a_task_is_not_opened(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "task"
    (folder / "in").mkdir(parents=True)
    outside = write(tmp_path / "outside.jsonl", {"a": 2, "b": 3})
    (folder / "link.jsonl").symlink_to(outside)
    named = (
        f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {given.format(tmp_path=tmp_path)}}}}}\n"
    )
    (folder / "t.yaml").write_text(GENERATION + named)
    with pytest.raises(GlassloopError, match="a file in the folder of the task is expected"):
        find_task(str(folder / "t.yaml"))
    assert len(find_task(str(folder / "t.yaml"), data=outside).items) == 1


# ---- likelihoods


def test_scores_are_the_log_probabilities_of_the_forward_pass(tiny: LLM) -> None:
    import numpy as np

    context = [104, 101, 108]
    choices = [[108, 111], [101], [120, 121, 122, 104]]
    expected = []
    for choice in choices:
        logits = tiny.logits(context + choice, len(context) - 1)[: len(choice)].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        logprobs -= logits.max(1, keepdims=True)
        expected.append(float(sum(logprobs[place, token] for place, token in enumerate(choice))))
    assert score_each(tiny, [(context, choice) for choice in choices]) == pytest.approx(expected, abs=1e-4)
    assert score_each(tiny, [(context, [])]) == [0]


def test_spaces_before_a_choice_belong_to_it(tiny: LLM) -> None:
    context, choice = encode_pair(tiny, "a b: ", "c")
    assert tiny.tokenizer.decode(choice) == " c" and tiny.tokenizer.decode(context).endswith("a b:")
    with pytest.raises(GlassloopError, match="question is empty"):
        encode_pair(tiny, "", "c")


def test_another_model_judges_by_likelihood(tiny: LLM) -> None:
    verdict = likelihood(tiny, "hello", threshold=0.0)("world")
    assert verdict.passed and 0 < verdict.score < 1
    assert not likelihood(tiny, "hello")("world").passed
    told = judged_by(tiny, "2 + 2?")("4")
    against = judged_by(tiny, "2 + 2?", yes="No", no="Yes")("4")
    assert told.score + against.score == pytest.approx(1)
    with pytest.raises(GlassloopError, match="asked has no"):
        judged_by(tiny, "x", asked="what?")


# ---- evaluations


def animals(tmp_path: Path) -> EvaluationTask:
    rows = [{"prompt": f"q{n}", "choices": ["a", "bb", "ccc"], "answer": n % 3} for n in range(5)]
    return find_task(str(write(tmp_path / "animals.jsonl", *rows)))


def test_choices_are_compared_with_and_without_their_length(tiny: LLM, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    figures = evaluate(tiny, Evaluation(animals(tmp_path), record=path))
    assert [row["method"] for row in figures.json] == ["likelihood", "likelihood_norm"]
    for row in read(path)[1]:
        lengths = [1, 2, 3] if row["method"] == "likelihood_norm" else [1, 1, 1]
        compared = [score / length for score, length in zip(row["scores"], lengths, strict=True)]
        assert row["value"] == str(compared.index(max(compared)))
    assert evaluate(tiny, Evaluation(animals(tmp_path), record=path)).json == figures.json
    with pytest.raises(GlassloopError, match="method is vote:3; a task of choices has"):
        evaluate(tiny, Evaluation(animals(tmp_path), methods="vote:3"))


def test_methods_with_a_budget_and_wrong_options(tiny: LLM, tmp_path: Path) -> None:
    task = find_task(
        str(write(tmp_path / "t.jsonl", *({"prompt": f"q{n}", "answer": "x"} for n in range(3))))
    )
    figures = evaluate(
        tiny, Evaluation(task, "greedy,vote:4", max_tokens=8, budget={"tokens": 10}, sampling={"top_k": 3})
    )
    assert all(row["tokens"] <= 30 for row in figures.json)
    for wrong, told in (
        ({"methods": "magic"}, "method is 'magic'"),
        ({"methods": "vote:2,vote:2"}, "every method is expected once"),
        ({"methods": "best:2"}, "method is best:2, which needs a verifier; t has answers instead"),
        ({"limit": 0}, "limit is 0"),
        ({"budget": {"tokens": 0}}, "budget.tokens"),
        ({"sampling": {"temprature": 1}}, "temprature"),
    ):
        with pytest.raises(GlassloopError, match=told):
            Evaluation(task, **wrong).check()


def test_a_verifier_that_cannot_work_is_an_error_and_not_a_wrong_answer(monkeypatch, tmp_path: Path) -> None:
    """A verdict against every text would look like a bad model."""
    monkeypatch.setitem(sys.modules, "langdetect", None)
    with pytest.raises(GlassloopError, match="need langdetect"):
        Evaluation(find_task("ifeval")).check()
    path = write(tmp_path / "t.jsonl", {"prompt": "Code", "tests": ["assert f() == 1"]})
    task = find_task(str(path))
    monkeypatch.setattr(sandbox, "_SCRIPT", tmp_path / "nothing.py")
    sandbox.check_available.cache_clear()
    with pytest.raises(GlassloopError, match="only in a sandbox, and there is none here"):
        Evaluation(task).check()
    sandbox.check_available.cache_clear()


DRIVER = """
import sys
from glassloop.evaluate.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
# Stands still before the seventh row, however late it is killed.
HELD = """
import threading
from glassloop.evaluate.record import Record
add = Record.add
Record.add = lambda record, row: threading.Event().wait() if len(record.rows) == 6 else add(record, row)
"""


def test_samples_are_drawn_with_the_options_that_are_given(tiny_path: Path, tmp_path: Path) -> None:
    task, out = write(tmp_path / "t.jsonl", {"prompt": "a", "answer": "x"}), tmp_path / "record.jsonl"
    command = ["draw", str(task), "-m", str(tiny_path), "--kv-memory", "16MB", "--out", str(out)]
    drawn = ["--no-greedy", "--samples", "2", "--max-tokens", "4", "--top-p", "0.9", "--min-p", "0.1"]
    assert main([*command, *drawn]) == 0
    header, rows = read(out)
    assert header["options"] == {"top_p": 0.9, "min_p": 0.1} and len(rows[0]["runs"]) == 2


def test_an_evaluation_that_is_killed_goes_on_where_it_was(tiny_path: Path, tmp_path: Path) -> None:
    task = write(tmp_path / "t.jsonl", *({"prompt": f"question {n}", "answer": "x"} for n in range(16)))
    out = tmp_path / "record.jsonl"
    command = [sys.executable, "-c", DRIVER, "run", str(task), "-m", str(tiny_path), "--kv-memory", "16MB"]
    command += ["--methods", "vote:2", "--max-tokens", "100", "--streams", "4", "--out", str(out)]
    held = [sys.executable, "-c", HELD + DRIVER, *command[3:]]
    process = subprocess.Popen(held, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 4)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = read(out)[1]
    assert 0 < len(before) < 16
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    rows = read(out)[1]
    assert rows[: len(before)] == before
    assert len(rows) == len({row["item"] for row in rows}) == 16
    assert json.loads(again.stdout.splitlines()[-1])[0]["items"] == 16
    whole = tmp_path / "whole.jsonl"
    command[-1] = str(whole)
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    plain = [{row["item"]: row["text"] for row in read(path)[1]} for path in (out, whole)]
    assert plain[0] == plain[1]
