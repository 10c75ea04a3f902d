"""Plugins: Python files that register stages, verifiers or methods of search, and what the record of a run
says of its stages.

`--plugin FILE` on the command line and `load_plugin` in Python run such a file, with all the rights of the
process. Nothing else does: neither a request nor a recorded run can name a file to load.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from glassloop.decode.chain import expand_stages
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import MOST_SOURCE, REGISTER, Plugin
from glassloop.errors import GlassloopError, SamplingError
from glassloop.util.files import read_at_most
from glassloop.util.shown import shown

# What plugins may register, by kind and name. Stages are here; `search/` fills the others.
_REGISTERS: dict[str, dict[str, Any]] = {"stage": REGISTER, "verifier": {}, "method": {}}
_PATHS: dict[tuple[str, str], Path] = {}  # the plugin that registered something, by its kind and name


def plugin_register(kind: str) -> dict[str, Any]:
    """Returns the register of things of a kind that plugins may define, by name."""
    return _REGISTERS[kind]


def load_plugin(path: str | Path) -> Plugin:
    """Runs a Python file, which must register a stage, a verifier or a method of search. Its code has all
    rights of this process: load only what you trust. If it fails, nothing of it stays registered."""
    path = Path(path)
    source = read_at_most(path, MOST_SOURCE, GlassloopError)
    plugin = Plugin.of(path, source)
    module = ModuleType(f"glassloop_plugin_{plugin.sha256[:12]}")
    module.__file__ = str(path)
    before = {kind: dict(register) for kind, register in _REGISTERS.items()}
    sys.modules[module.__name__] = module  # where dataclasses and pickle look for it
    try:
        _run(source, path, module)
        added = [
            (kind, name)
            for kind, register in _REGISTERS.items()
            for name, made in register.items()
            if before.get(kind, {}).get(name) is not made
        ]
        _check_added(path, added, before)
    except BaseException:
        del sys.modules[module.__name__]
        for kind, register in _REGISTERS.items():
            register.clear()
            register.update(before.get(kind, {}))
        raise
    for kind, name in added:
        if kind == "stage":
            REGISTER[name] = REGISTER[name]._replace(plugin=plugin)
        _PATHS[kind, name] = path.resolve()
    return plugin


def _run(source: bytes, path: Path, module: ModuleType) -> None:
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except GlassloopError as error:
        raise GlassloopError(f"plugin {path}: {error}", field=error.field) from error
    except Exception as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"plugin {path}" + (f", line {line}" if line else "")
        raise GlassloopError(f"{where}: {type(error).__name__}: {error}") from error


def _check_added(path: Path, added: list[tuple[str, str]], before: Mapping[str, Mapping[str, Any]]) -> None:
    if not added:
        expected = "a function with @stage or @verifier, or a class with @search_method, is expected"
        raise GlassloopError(f"plugin {path} registers no stage; {expected}")
    for kind, name in added:
        if name in before.get(kind, {}) and _PATHS.get((kind, name)) != path.resolve():
            other = getattr(before[kind][name], "plugin", None)
            by = f" by {other.file}" if other else ""
            raise GlassloopError(
                f"plugin {path}: {kind} {name!r} is registered already{by}; another name is expected"
            )


# ── what records say ───────────────────────────────────────────────────────────────────────────────────────


def plugins_of(sampling: Sampling) -> dict[str, Plugin]:
    """Returns the files that define the stages which a request lists, by the name of the stage, as far as
    they are known. Built-in stages have none."""
    if sampling.stages is None:
        return {}
    listed = [(name, REGISTER[name].plugin) for name in expand_stages(sampling.stages) if name in REGISTER]
    return {name: plugin for name, plugin in listed if plugin is not None}


def check_stages(sampling: Sampling, plugins: Mapping[str, Plugin]) -> None:
    """Raises if a stage is not registered of which the record of a run says where it is from."""
    for name in sampling.stages or ():
        if name not in REGISTER and name in plugins:
            plugin = plugins[name]
            advice = f"the run was made with plugin {plugin}: pass --plugin {plugin.file}"
            problem = f"has {shown(name)}, which is not registered here; {advice} (in Python: load_plugin)"
            raise SamplingError.about("stages", problem)


def plugin_notes(plugins: Mapping[str, Plugin]) -> tuple[str, ...]:
    """Returns a note for each file of a record that is not the file which the stage has here."""
    notes: dict[str, None] = {}  # each once: several stages may be in one file
    for name, recorded_plugin in plugins.items():
        here = REGISTER[name].plugin if name in REGISTER else recorded_plugin
        if here is None or here.sha256 != recorded_plugin.sha256:
            notes[f"made with plugin {recorded_plugin}, and here it is {here or 'another one'}"] = None
    return tuple(notes)
