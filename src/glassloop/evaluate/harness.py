"""Task files in the form of lm-evaluation-harness: YAML with templates for prompts, answers and choices.

What is understood: `generate_until` and `multiple_choice` tasks whose data is a JSONL file; `doc_to_text`,
`doc_to_target` and `doc_to_choice` as names of fields or as Jinja templates, which run in the sandbox of chat
templates; `description`, `target_delimiter`, `generation_kwargs`, a filter of one regular expression, and the
metrics acc, acc_norm and exact_match. Python functions (`!function`), few-shot examples and everything else
that would change the result are refused by name.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassloop.errors import TextError
from glassloop.evaluate.builtin import rows
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskError, TaskItem
from glassloop.search.extract import find_extractor
from glassloop.search.verdict import Verdict, Verifier
from glassloop.text.template_worker import TemplateLimits
from glassloop.util.check import ValueRule, check_one_of, one_of, require
from glassloop.util.files import read_at_most
from glassloop.util.shown import shown

_LONGEST = 1 << 20  # bytes of a task file
_IGNORED = {
    *("metadata", "tag", "group", "task_alias", "dataset_name", "dataset_kwargs", "repeats"),
    *("training_split", "validation_split", "test_split", "fewshot_split"),
    *("should_decontaminate", "doc_to_decontamination_query"),
}
_KNOWN = _IGNORED | {
    *("task", "output_type", "dataset_path", "doc_to_text", "doc_to_target", "doc_to_choice", "description"),
    *("target_delimiter", "generation_kwargs", "filter_list", "metric_list", "num_fewshot"),
}
_LIMITS = TemplateLimits()
_MAPPING = ValueRule("a mapping", lambda it: isinstance(it, Mapping))
_TEMPLATE = ValueRule("a template or a field", lambda it: isinstance(it, (str, int)))
_CHOICES = ValueRule("a list of choices", lambda it: isinstance(it, list) and bool(it))


def read_harness_task(path: Path, data: Path | None = None) -> EvaluationTask:
    """Returns the task of a YAML file. `data` is its JSONL file, if the YAML file names none."""
    config = _load(path)
    for name in config:
        if name not in _KNOWN:
            raise TaskError.about(str(name), f"in {path} is not supported; the task would not be the same")
    if config.get("num_fewshot") not in (None, 0):
        raise TaskError.about("num_fewshot", f"is {shown(config['num_fewshot'])}; only 0 is supported")
    kind = config.get("output_type", "generate_until")
    check_one_of("output_type", kind, ("generate_until", "multiple_choice"), TaskError)
    source = data or _data_file(path, config)
    name = str(config.get("task", path.stem))
    templates = _Templates(config, path)
    if kind == "multiple_choice":
        items = [_choice_item(place, row, templates) for place, row in enumerate(rows(source))]
        return EvaluationTask(name, tuple(items), "text", delimiter=templates.delimiter, chat=False)
    options = _generation(config.get("generation_kwargs") or {})
    extract = _filter(config.get("filter_list"))
    metric = _metric(config.get("metric_list"))
    items = [_item(place, row, templates, extract, metric) for place, row in enumerate(rows(source))]
    stop, most = options.pop("stop", ()), options.pop("max_tokens", 256)
    return EvaluationTask(name, tuple(items), extract, most, tuple(stop), False, options)


def _load(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise TaskError("task files in YAML need PyYAML: pip install 'glassloop[eval]'") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """A loader without aliases: a few of them are a value that takes forever to look at."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise yaml.composer.ComposerError(problem="aliases (*name) are not supported")
            return super().compose_node(parent, index)

    try:
        loaded: dict[str, Any] = yaml.load(read_at_most(str(path), _LONGEST, TaskError), Loader)
    except yaml.constructor.ConstructorError as error:
        problem = (error.problem or "an unknown tag").splitlines()[0]
        raise TaskError(f"{path}: {problem}; Python functions and included files are not supported") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TaskError(f"{path}: is not YAML: {' '.join(str(error).split())[:200]}") from None
    require(str(path), loaded, _MAPPING, TaskError)
    return loaded


def _data_file(path: Path, config: Mapping[str, Any]) -> Path:
    data_files = (config.get("dataset_kwargs") or {}).get("data_files")
    if isinstance(data_files, Mapping):
        data_files = data_files.get(config.get("test_split") or config.get("validation_split") or "test")
    if config.get("dataset_path") == "json" and isinstance(data_files, str):
        data_file = path.parent / data_files
        if not data_file.resolve().is_relative_to(path.parent.resolve()):
            problem = (
                f"is {shown(data_files)}; a file in the folder of the task is expected, or --data FILE.jsonl"
            )
            raise TaskError.about("data_files", problem)
        return data_file
    raise TaskError.about("data", f"is missing: {path} names no JSON file; --data FILE.jsonl is expected")


class _Templates:
    """The templates of a task: each the name of a field or a Jinja template."""

    def __init__(self, config: Mapping[str, Any], path: Path) -> None:
        self._config, self._path = config, path
        self.delimiter = str(config.get("target_delimiter", " "))
        self._description = str(config.get("description") or "")
        for name in ("doc_to_text", "doc_to_target"):
            require(name, config.get(name), _TEMPLATE, TaskError)

    def text(self, row: Mapping[str, Any]) -> str:
        return self._description + str(self.value("doc_to_text", row))

    def value(self, name: str, row: Mapping[str, Any]) -> Any:
        source = self._config[name]
        if not isinstance(source, str):
            return source
        if source in row:
            return row[source]
        from glassloop.text.renderer import render

        try:
            return render(source, row, _LIMITS)
        except TextError as error:
            raise TaskError.about(name, f"of {self._path}: {error}") from None

    def choices(self, row: Mapping[str, Any]) -> list[str]:
        choices: Any = self._config.get("doc_to_choice")
        if isinstance(choices, str):
            choices = self.value("doc_to_choice", row)
            if isinstance(choices, str):
                choices = _literal(choices)
        elif isinstance(choices, Mapping):
            choices = list(choices.values())
        require("doc_to_choice", choices, _CHOICES, TaskError)
        return [str(choice) for choice in choices]


def _literal(text: str) -> Any:
    """Returns the list that a template has written."""
    if len(text) > 100_000:
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def _choice_item(place: int, row: dict[str, Any], templates: _Templates) -> TaskItem:
    choices = templates.choices(row)
    target = templates.value("doc_to_target", row)
    if isinstance(target, str):
        stripped = target.strip()
        if stripped in choices:
            target = choices.index(stripped)
        elif stripped.isdecimal():
            target = int(stripped)
    if isinstance(target, bool) or not isinstance(target, int) or not 0 <= target < len(choices):
        problem = f"is {shown(target)} in item {place + 1}; a choice or its number is expected"
        raise TaskError.about("doc_to_target", problem)
    return TaskItem(str(place), templates.text(row), str(target), tuple(choices))


def _item(
    place: int, row: dict[str, Any], templates: _Templates, extract: str, metric: Mapping[str, Any]
) -> TaskItem:
    target = templates.value("doc_to_target", row)
    targets = [str(each) for each in target] if isinstance(target, list) else [str(target)]
    verify = _exact_match(targets, extract, metric)
    return TaskItem(str(place), templates.text(row), targets[0], verify=verify)


def _exact_match(targets: list[str], extract: str, metric: Mapping[str, Any]) -> Verifier:
    extractor = find_extractor(extract)

    def plain(text: str) -> str:
        text = text.strip()
        if metric.get("ignore_case"):
            text = text.lower()
        if metric.get("ignore_punctuation"):
            import string

            text = text.translate(str.maketrans("", "", string.punctuation))
        return text

    wanted = {plain(target) for target in targets}

    def verify(text: str) -> Verdict:
        value = extractor(text)
        passed = value is not None and plain(value) in wanted
        return Verdict(passed, float(passed), "" if passed else f"the answer is {shown(value)}")

    return verify


def _generation(kwargs: Any) -> dict[str, Any]:
    require("generation_kwargs", kwargs, _MAPPING, TaskError)
    names = {"max_gen_toks": "max_tokens", "until": "stop"}
    options: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name == "do_sample":
            continue
        if name not in (*names, "temperature", "top_p", "top_k", "min_p", "max_tokens"):
            raise TaskError.about(f"generation_kwargs.{name}", "is not supported")
        options[names.get(name, str(name))] = [value] if name == "until" and isinstance(value, str) else value
    if kwargs.get("do_sample") is False:
        options["temperature"] = 0.0
    return options


def _filter(filters: Any) -> str:
    """Returns the extractor of a filter list: the first match of one regular expression, or the
    last one if the list says so. Without a filter it is the whole text."""
    if not filters:
        return "text"
    steps = (
        filters[-1].get("filter", [])
        if isinstance(filters, list) and isinstance(filters[-1], Mapping)
        else []
    )
    patterns = [step for step in steps if isinstance(step, Mapping) and step.get("function") == "regex"]
    others = [step.get("function") for step in steps if isinstance(step, Mapping) and step not in patterns]
    if len(patterns) != 1 or any(other not in ("take_first", "remove_whitespace") for other in others):
        raise TaskError.about("filter_list", f"is {shown(filters)}; one regex and take_first are expected")
    pattern = patterns[0].get("regex_pattern", r"#### (\-?[0-9\.\,]+)")
    select = patterns[0].get("group_select", 0)
    require("filter_list.group_select", select, one_of(0, -1), TaskError)
    return f"{'regex' if select == -1 else 'first'}:{pattern}"


def _metric(listed: Any) -> Mapping[str, Any]:
    metrics = listed if isinstance(listed, list) else []
    for metric in metrics:
        name = metric.get("metric") if isinstance(metric, Mapping) else metric
        if name not in ("exact_match", "acc", "acc_norm"):
            raise TaskError.about(
                "metric_list", f"has {shown(name)}; exact_match, acc and acc_norm are supported"
            )
        for option in metric if isinstance(metric, Mapping) else ():
            if option not in (
                *("metric", "aggregation", "higher_is_better", "ignore_case", "ignore_punctuation"),
                *("regexes_to_ignore",),
            ):
                raise TaskError.about(f"metric_list.{option}", "is not supported")
        if isinstance(metric, Mapping) and metric.get("regexes_to_ignore"):
            raise TaskError.about("metric_list.regexes_to_ignore", "is not supported")
    metric_fields = next((metric for metric in metrics if isinstance(metric, Mapping)), {})
    return {str(name): value for name, value in metric_fields.items()}
