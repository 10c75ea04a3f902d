"""From what a user names to a task: a built-in one, a generator of reasoning-gym, or a file."""

from __future__ import annotations

from pathlib import Path

from glassloop.evaluate.builtin import bbh, gsm8k, ifeval, reasoning_gym
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskError
from glassloop.search.extract import find_extractor
from glassloop.util.shown import shown

BUILT_IN = ("gsm8k", "ifeval", "ifeval:loose", "bbh", "bbh:PART", "gym:NAME")


def find_task(
    name: str, *, data: Path | None = None, extract: str | None = None, size: int = 100, seed: int = 0
) -> EvaluationTask:
    """Returns the task of a name, or of a `.jsonl` or `.yaml` file. `data` is the whole file of a built-in
    task; `size` and `seed` are for generators. `extract` is used in place of the task's own extractor."""
    task = _find(name, data, extract, size, seed)
    if extract is not None and task.is_choice:
        raise TaskError.about("extract", f"is given; {task.name} has choices, of which no text is generated")
    if extract is None or extract == task.extract:
        return task
    find_extractor(extract)
    return task.extracting(extract)


def _find(name: str, data: Path | None, extract: str | None, size: int, seed: int) -> EvaluationTask:
    kind, _, part = name.partition(":")
    if kind == "gsm8k" and not part:
        return gsm8k(data)
    if kind == "ifeval" and part in ("", "loose", "strict"):
        return ifeval(data, loose=part == "loose")
    if kind == "bbh":
        return bbh(data, part)
    if kind == "gym" and part:
        return reasoning_gym(part, size=size, seed=seed)
    path = Path(name)
    if path.suffix in (".jsonl", ".yaml", ".yml", ".json") or path.is_file():
        from glassloop.evaluate.task_file import read_task

        return read_task(path, data=data, extract=extract)
    raise TaskError.about(
        "task", f"is {shown(name)}; a task file or one of {', '.join(BUILT_IN)} is expected"
    )
