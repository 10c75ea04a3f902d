"""The tasks that are built in: GSM8K, IFEval, BIG-Bench Hard, and the generators of reasoning-gym.

GSM8K and IFEval are in the package, under `data/`. `data=` names another file of the same form; BIG-Bench
Hard needs one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glassloop.evaluate.evaluation_task import EvaluationTask, TaskError, TaskItem
from glassloop.search.extract import number
from glassloop.search.verdict import Verdict
from glassloop.search.verify.ifeval import IFEval
from glassloop.util.check import TEXT, require
from glassloop.util.fields import json_object
from glassloop.util.shown import shown

DATA = Path(__file__).with_name("data")
MOST_ITEMS = 1_000_000
LONGEST_LINE = 1 << 22  # bytes

_GSM8K = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_BBH = {
    "letter": "{question}\n\nThink step by step, and end with 'The answer is (X).', where X is the letter.",
    "words": "{question}\n\nThink step by step, and end with 'The answer is' and one of: {options}.",
    "number": "{question}\n\nThink step by step, and end with 'The answer is' and the number.",
    "text": "{question}\n\nThink step by step, and end with 'The answer is' and the answer.",
}


def gsm8k(data: Path | None = None) -> EvaluationTask:
    """Returns GSM8K: school mathematics whose answers are numbers."""
    items = []
    for index, row in enumerate(rows(data or DATA / "gsm8k.jsonl")):
        question, answer = text_of(row, "question"), text_of(row, "answer")
        items.append(TaskItem(f"gsm8k-{index}", _GSM8K.format(question=question), number(answer)))
    return EvaluationTask("gsm8k", tuple(items), "number", max_tokens=512)


def ifeval(data: Path | None = None, *, loose: bool = False) -> EvaluationTask:
    """Returns IFEval: prompts with instructions that a program can check."""
    items = []
    for index, row in enumerate(rows(data or DATA / "ifeval.jsonl")):
        verify = IFEval.of(row, loose=loose)
        items.append(TaskItem(f"ifeval-{row.get('key', index)}", text_of(row, "prompt"), verify=verify))
    return EvaluationTask("ifeval-loose" if loose else "ifeval", tuple(items), "text", max_tokens=1024)


def bbh(data: Path | None = None, part: str = "") -> EvaluationTask:
    """Returns BIG-Bench Hard, or one of its 27 parts."""
    by_part: dict[str, list[tuple[str, str]]] = {}
    if data is None:
        expected = "a JSONL file with task, input and target is expected"
        raise TaskError.about("data", f"is missing: BIG-Bench Hard is not in the package; {expected}")
    for row in rows(data):
        by_part.setdefault(text_of(row, "task"), []).append((text_of(row, "input"), text_of(row, "target")))
    if part and part not in by_part:
        raise TaskError.about("task", f"bbh has no part {shown(part)}; it has {', '.join(by_part)}")
    items = []
    for name, pairs in by_part.items():
        if not part or name == part:
            kind, extract, options = _bbh_kind([target for _, target in pairs])
            for index, (question, target) in enumerate(pairs):
                prompt = _BBH[kind].format(question=question, options=", ".join(options))
                answer = {"letter": target.strip("()"), "number": number(target)}.get(kind, target)
                verify = None if kind != "text" else _said(target)
                items.append(
                    TaskItem(f"{name}-{index}", prompt, answer, verify=verify, group=name, extract=extract)
                )
    return EvaluationTask(f"bbh:{part}" if part else "bbh", tuple(items), "auto", max_tokens=512)


def _bbh_kind(targets: list[str]) -> tuple[str, str, list[str]]:
    """Returns the kind of the answers of a part, its extractor, and the options if they are words."""
    if sum(bool(re.fullmatch(r"\([A-Z]\)", target)) for target in targets) > len(targets) // 2:
        return "letter", "choice", []
    if all(number(target) == target for target in targets):
        return "number", "number", []
    options = sorted(set(targets))
    if len(options) <= 4:
        return "words", "choice:" + "|".join(options), options
    return "text", "last_line", []


def _said(target: str) -> Callable[[str], Verdict]:
    """Returns a verifier: the text ends with the target, up to case, punctuation and spaces."""
    wanted = _squeezed(target)

    def verify(text: str) -> Verdict:
        passed = _squeezed(text[-4 * len(target) - 200 :]).endswith(wanted)
        return Verdict(passed, float(passed), "" if passed else f"does not end with {target!r}")

    return verify


def _squeezed(text: str) -> str:
    return re.sub(r"[\s.,*`'\"$]+", "", text.casefold())


def reasoning_gym(name: str, *, size: int = 100, seed: int = 0) -> EvaluationTask:
    """Returns a task of `reasoning-gym`, whose own scoring judges the answers; a score of 1 is right."""
    try:
        import reasoning_gym as gym
    except ImportError:
        raise TaskError("tasks of reasoning-gym need it: pip install 'glassloop[eval]'") from None
    try:
        dataset = gym.create_dataset(name, size=size, seed=seed)
    except (ValueError, KeyError) as error:
        raise TaskError.about("task", f"gym:{name} is unknown to reasoning-gym ({error})") from None
    template = "{question}\n\nThink step by step, and give the final answer on the last line, after '#### '."
    items = []
    for index in range(size):
        entry = dataset[index]
        question = template.format(question=entry["question"])
        verify = _gym_verifier(dataset, entry)
        items.append(TaskItem(f"{name}-{index}", question, str(entry["answer"]), verify=verify))
    return EvaluationTask(f"gym:{name}", tuple(items), "regex:####\\s*(.+)", max_tokens=512)


def _gym_verifier(dataset: Any, entry: Mapping[str, Any]) -> Callable[[str], Verdict]:
    def verify(text: str) -> Verdict:
        answers = re.findall(r"####\s*(.+)", text)
        answer = answers[-1].strip().strip("*$` ") if answers else None
        score = float(dataset.score_answer(answer, entry))
        return Verdict(score >= 1, max(0.0, min(1.0, score)))

    return verify


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSONL file; an error names the file and the line."""
    try:
        with path.open("rb") as file:
            for index, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b"")):
                where = f"{path}, line {index + 1}"
                if len(line) > LONGEST_LINE or index >= MOST_ITEMS:
                    raise TaskError(f"{where}: is longer than {LONGEST_LINE} bytes, or one line too many")
                if not line.strip():
                    continue
                yield json_object(line, where, TaskError)
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from None


def text_of(row: Mapping[str, Any], name: str) -> str:
    require(name, row.get(name), TEXT, TaskError)
    return str(row[name])
