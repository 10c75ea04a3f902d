"""Plugins: Python files that register stages, and what the record of a run says of them.

`--plugin FILE` on the command line and `load_plugin` in Python run such a file, with all the rights of the
process. Nothing else does: neither a request nor a recorded run can name a file to load.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from glassloop.decode.chain import expand_stages
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import MOST_SOURCE, REGISTER, Plugin, Stage
from glassloop.errors import GlassloopError, SamplingError
from glassloop.files import read_at_most
from glassloop.shown import shown

_PATHS: dict[str, Path] = {}  # the plugin that registered a stage, by the name of the stage


def load_plugin(path: str | Path) -> Plugin:
    """Runs a Python file, which must register at least one stage. Its code has all rights of this process:
    load only what you trust. If it fails, none of its stages stays registered."""
    path = Path(path)
    source = read_at_most(path, MOST_SOURCE, GlassloopError)
    plugin = Plugin.of(path, source)
    module = ModuleType(f"glassloop_plugin_{plugin.sha256[:12]}")
    module.__file__ = str(path)
    before = dict(REGISTER)
    sys.modules[module.__name__] = module  # where dataclasses and pickle look for it
    try:
        _run(source, path, module)
        added = [name for name, stage in REGISTER.items() if before.get(name) is not stage]
        _check_added(path, added, before)
    except BaseException:
        del sys.modules[module.__name__]
        REGISTER.clear()
        REGISTER.update(before)
        raise
    for name in added:
        REGISTER[name] = REGISTER[name]._replace(plugin=plugin)
        _PATHS[name] = path.resolve()
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


def _check_added(path: Path, added: list[str], before: Mapping[str, Stage]) -> None:
    if not added:
        raise GlassloopError(f"plugin {path} registers no stage; a function with @stage is expected")
    for name in added:
        if name in before and _PATHS.get(name) != path.resolve():
            other = before[name].plugin
            by = f" by {other.file}" if other else ""
            raise GlassloopError(
                f"plugin {path}: stage {name!r} is registered already{by}; another name is expected"
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
            known = f"the run was made with plugin {plugin}: pass --plugin {plugin.file}"
            problem = f"has {shown(name)}, which is not registered here; {known} (in Python: load_plugin)"
            raise SamplingError.about("stages", problem)


def plugin_notes(plugins: Mapping[str, Plugin]) -> tuple[str, ...]:
    """Returns a note for each file of a record that is not the file which the stage has here."""
    notes: dict[str, None] = {}  # each once: several stages may be in one file
    for name, made in plugins.items():
        here = REGISTER[name].plugin if name in REGISTER else made
        if here is None or here.sha256 != made.sha256:
            notes[f"made with plugin {made}, and here it is {here or 'another one'}"] = None
    return tuple(notes)
