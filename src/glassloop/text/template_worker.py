"""Renders one chat template in a process of its own, with hard limits on memory, time and files.

This file is the script of a child process that `renderer.py` starts (see `util/child.py`). The first message
is the set-up, each later one has the values of a rendering, both as JSON. An answer is a status of one byte,
and text. It imports only Jinja and the standard library, so that it starts quickly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from glassloop.util.child_main import Parent

TEXT, FAILED, ENDED = 0, 1, 2  # rendered; an error; an error after which this process is of no more use


class TemplateLimits(NamedTuple):
    """What a chat template may use."""

    source: int = 100_000  # characters of the template; the largest in use have some 20,000
    text: int = 8_000_000  # characters of the result
    seconds: float = 5.0  # to compile it, and for each rendering
    memory: int = 256 << 20  # bytes of address space, Python's own 25 MB included


def serve(parent: Parent) -> None:
    def answer(status: int, text: str) -> None:
        parent.send(bytes([status]) + text.encode("utf-8", "surrogatepass"))

    setup = json.loads(parent.receive())
    sys.path[:] = setup["path"]
    environment = _environment()
    _set_limits(setup["memory"])
    answer(TEXT, "")  # from here on, failures are the template's

    seconds, most = setup["seconds"], setup["text"]
    status, template = _attempt(seconds, environment.from_string, setup["source"])
    if status != TEXT:
        answer(ENDED, template)
        return
    answer(TEXT, "")
    while status != ENDED:
        status, text = _attempt(seconds, _render, template, parent.receive(), most)
        answer(status, text)


def _attempt(seconds: float, work: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    """Returns a status, and the result of the work or the reason why it failed."""
    _allow_time(seconds)
    try:
        return TEXT, work(*arguments)
    except MemoryError:
        return ENDED, "needs too much memory"
    except RecursionError:
        return FAILED, "is nested too deeply"
    except Exception as error:  # a template is a program, and can raise anything
        return FAILED, _describe(error)


class _TooLong(Exception):
    pass


def _render(template: Any, values: bytes, most: int) -> str:
    chunks, size = [], 0
    for chunk in template.generate(json.loads(values.decode("utf-8", "surrogatepass"))):
        size += len(chunk)
        if size > most:
            raise _TooLong(f"makes a text of more than {most} characters")
        chunks.append(chunk)
    return "".join(chunks)


def _describe(error: Exception) -> str:
    from jinja2 import TemplateError, TemplateSyntaxError

    reason = error.strerror if isinstance(error, OSError) else getattr(error, "message", None)
    message = " ".join(str(reason or error)[:3000].split())[:300]
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {message}"
    if isinstance(error, (TemplateError, _TooLong)):
        return message or "failed"
    return f"{type(error).__name__}: {message}"


def _set_limits(memory: int) -> None:
    """Forbids files and processes, and limits the address space to `memory` bytes where the system can."""
    import resource

    if sys.platform != "darwin":  # macOS refuses a limit of the address space
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for limit, most in (
        (resource.RLIMIT_NOFILE, 3),  # stdin, stdout and stderr, which are open
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (most, most))


def _allow_time(seconds: float) -> None:
    """Limits CPU time. The parent ends a slow rendering itself; this one holds if the parent has died. It is
    generous, as a virtual machine may count time as the processor's in which it stood still."""
    import resource

    spent = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(spent.ru_utime + spent.ru_stime + seconds) + 30
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _environment() -> Any:
    """Returns Jinja's sandbox as chat templates expect it. All that a template can need is imported here:
    files cannot be opened later."""
    from datetime import datetime

    import jinja2.debug  # noqa: F401  # used by every error
    from jinja2 import nodes
    from jinja2.exceptions import TemplateRuntimeError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.runtime import Undefined
    from jinja2.sandbox import SandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}…{% endgeneration %}` marks text for training; it renders as that text."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
        # Jinja's own would escape HTML; a prompt is not a web page.
        if isinstance(value, Undefined):
            value._fail_with_undefined_error()
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=listed, **options)

    def listed(value: Any) -> Any:  # what `map` and other filters give
        if isinstance(value, Iterator):
            return list(value)
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")

    def strftime_now(layout: str) -> str:
        return datetime.now().strftime(layout)

    def raise_exception(message: object) -> NoReturn:
        raise TemplateRuntimeError(str(message))

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    del environment.globals["lipsum"]
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    # What Jinja and the C library load at first use.
    environment.from_string("{{ strftime_now('%c') | wordwrap | pprint }}").render()
    return environment
