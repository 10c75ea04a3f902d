"""Jinja for templates that strangers wrote: what they may call, and how much they may spend.

A chat template arrives inside a model file. Jinja's sandbox keeps it away from the machine; the bounds here
keep it away from the clock and the memory. Every turn of a loop and every call is counted and timed, and
whatever could make a value grow (literals, operators, filters, methods) weighs its parts first.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_TEXT = 8_000_000  # characters of output, and of any one value on the way to it
MOST_STEPS = 2_000_000
MOST_SECONDS = 5.0
MOST_WIDTH = 100_000  # the largest number that a template may hand to a filter or a method
_LONGEST_SOURCE = 1_000_000
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{5})")
_WIDE_BRACES = re.compile(r"\{[^{}]*(\d{5}|:[^{}]*\{)")


class _Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self._steps = MOST_STEPS
        self._until = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise SecurityError(f"takes more than {MOST_STEPS} steps")
        if time.monotonic() > self._until:
            raise SecurityError(f"takes more than {MOST_SECONDS:g} seconds")


_budget: ContextVar[_Budget] = ContextVar("budget")


def _step() -> None:
    _budget.get().step()


def _check_size(size: int) -> None:
    if size > MOST_TEXT:
        raise SecurityError(f"makes a value of more than {MOST_TEXT} characters")


def weigh(*values: object) -> int:
    """About how many characters values print as, each part as often as it is there. Stops at `MOST_TEXT`:
    lists in lists can stand for far more than the memory they take."""
    weight, stack = 0, [*values]
    while stack and weight <= MOST_TEXT:
        value = stack.pop()
        if isinstance(value, (str, bytes)):
            weight += len(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            weight += 4 * len(value)  # quotes, comma, space
            stack.extend(value)
        elif isinstance(value, dict):
            weight += 8 * len(value)
            stack.extend(value)
            stack.extend(value.values())
        elif isinstance(value, int):
            weight += 1 + value.bit_length() // 3
    _check_size(weight)
    return weight


def _hold(value: Any) -> Any:
    weigh(value)
    return value


def _join(parts: tuple[Any, ...]) -> str:
    weigh(parts)
    return "".join(map(str, parts))


def _check_call(name: str, subject: Any, arguments: tuple[Any, ...]) -> None:
    """Before a filter or a method runs; those that make more than they are given are worked out first."""
    _step()
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MOST_WIDTH:
            raise SecurityError("passes a very large number to a function")
    weight = weigh(subject, *arguments)
    if name == "replace" and isinstance(subject, str) and len(arguments) >= 2:
        _check_size(weight + (subject.count(str(arguments[0])) + 1) * len(str(arguments[1])))
    elif name == "join":
        items, glue = (arguments[:1], subject) if isinstance(subject, str) else ((subject,), arguments[:1])
        _check_size(weight + weigh(glue) * max((len(i) for i in items if hasattr(i, "__len__")), default=0))
    elif name == "format" and isinstance(subject, str) and _WIDE_PERCENT.search(subject):
        raise SecurityError("formats text with a very large or computed width")
    elif name in ("indent", "translate", "expandtabs", "wordwrap") and isinstance(subject, str):
        widths = [a if isinstance(a, int) else weigh(a) for a in arguments]
        _check_size(len(subject) * max([8, *widths]))
    elif name == "sum" and not all(isinstance(a, (int, float, str, type(None))) for a in arguments):
        raise SecurityError("sums up what are not numbers")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the model's own words for training: the words."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_hold
        )
        for table in (self.filters, self.tests):
            for name, function in list(table.items()):
                table[name] = _bounded(name, function)
        self.filters["tojson"] = _bounded("tojson", _to_json)
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        # What the parsed templates call is kept here and not among the names that they can spell.
        self.bounds_step, self.bounds_join, self.bounds_hold = _step, _join, _hold

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _count_and_weigh(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        weight = weigh(left, right)
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    _check_size((weigh(value) + 1) * times if hasattr(value, "__len__") else weight * 100)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * max(right, 0) * 100)
        elif operator == "%" and isinstance(left, str) and _WIDE_PERCENT.search(left):
            raise SecurityError("formats text with a very large or computed width")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if obj is not _step and obj is not _join and obj is not _hold:
            subject = getattr(obj, "__self__", None)
            name = getattr(obj, "__name__", "") if isinstance(subject, (str, bytes)) else ""
            if name != "format":  # that one is Python's, and seen to below
                _check_call(name, subject if name else None, (*args, *kwargs.values()))
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACES.search(str(value.__self__)):
            raise SecurityError("formats text with a very large or computed width")
        return wrapped


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Some are given the context or the environment first. Jinja knows them by a mark, which is kept.
    given = 1 if hasattr(function, "jinja_pass_arg") else 0

    def bounded(*args: Any, **kwargs: Any) -> Any:
        subject, *rest = args[given:] or (None,)
        _check_call(name, subject, (*rest, *kwargs.values()))
        return function(*args, **kwargs)

    bounded.__dict__.update(getattr(function, "__dict__", {}))
    return bounded


def _count_and_weigh(node: nodes.Node) -> None:
    """Put a step at the head of all that is repeated, and scales under all that builds a value: list, tuple
    and dict literals, and `a ~ b`, which the sandbox does not intercept as it does other operators."""
    for field, value in node.iter_fields():
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, nodes.Node):
                continue
            _count_and_weigh(child)
            bounded: nodes.Node | None = None
            if isinstance(child, nodes.Concat):
                bounded = _call("bounds_join", nodes.Tuple(child.nodes, "load", lineno=child.lineno))
            elif isinstance(child, (nodes.List, nodes.Dict, nodes.Tuple)) and _is_read(child):
                bounded = _call("bounds_hold", child)
            if bounded is not None and isinstance(value, list):
                value[i] = bounded
            elif bounded is not None:
                setattr(node, field, bounded)
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
        node.body.insert(0, nodes.ExprStmt(_call("bounds_step"), lineno=node.lineno))


def _is_read(literal: nodes.Literal) -> bool:
    return getattr(literal, "ctx", "load") == "load"  # in `for a, b in …` the tuple is written to


def _call(name: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
    # Jinja's own would escape HTML; a prompt is not a web page.
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if isinstance(indent, int):
        _check_size(weigh(value) * abs(indent))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(layout: str) -> str:
    if re.search(r"\d{3}", layout):
        raise SecurityError("asks for a date with a very large width")
    return datetime.now().strftime(layout)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRuntimeError(str(message))


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    if len(source) > _LONGEST_SOURCE:
        raise SecurityError(f"is longer than {_LONGEST_SOURCE} characters")
    return _Environment().from_string(source)


def render(source: str, values: dict[str, Any]) -> str:
    """The text that a template makes of its values. What goes wrong is an exception of Jinja or Python."""
    before = _budget.set(_Budget())
    try:
        chunks, size = [], 0
        for chunk in _compiled(source).generate(values):
            size += len(chunk)
            _check_size(size)
            _step()
            chunks.append(chunk)
        return "".join(chunks)
    finally:
        _budget.reset(before)
