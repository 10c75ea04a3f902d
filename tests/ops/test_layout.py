"""Every structure and number that C and Python share is compared when the library is loaded: one that differs
is an error, and never corrupted memory."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest

from glassloop.decode import chosen
from glassloop.decode.rules import Action
from glassloop.errors import GlassloopError
from glassloop.ops.native import chooser, library


def _refused(name: str) -> None:
    with pytest.raises(GlassloopError, match=f"another version.*({name}).* is"):
        library.check_layout(library.library())


def _structure(name: str, fields: tuple) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def test_what_was_built_is_what_python_expects():
    library.check_layout(library.library())
    chosen.check_chooser.__wrapped__(chooser)


@pytest.mark.parametrize("name", library.STRUCTURES)
def test_a_structure_with_another_field_is_refused(monkeypatch, name):
    fields = library.STRUCTURES[name]._fields_
    wider = _structure(name, (*fields, ("more", ctypes.c_int64)))
    monkeypatch.setitem(library.STRUCTURES, name, wider)
    _refused(name)


@pytest.mark.parametrize("name", library.STRUCTURES)
def test_a_structure_with_two_fields_exchanged_is_refused(monkeypatch, name):
    """It has the same size."""
    first, second, *others = library.STRUCTURES[name]._fields_
    exchanged = _structure(name, ((second[0], first[1]), (first[0], second[1]), *others))
    monkeypatch.setitem(library.STRUCTURES, name, exchanged)
    _refused(name)


@pytest.mark.parametrize("name", ["OP_KINDS", "ACTIVATIONS", "IDS", "SELECTIONS"])
def test_an_enum_in_another_order_is_refused(monkeypatch, name):
    monkeypatch.setattr(library, name, getattr(library, name)[::-1])
    _refused("GL_")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAGE", 16),
        ("BLOCK", 64),
        ("BLOCK_BYTES", 12),
        ("FAILURES", {"none_left": -1, "wrong_rule": -3, "no_memory": -2}),
        ("FAULTS", dict(sorted(library.FAULTS.items()))),
    ],
)
def test_another_constant_is_refused(monkeypatch, name, value):
    monkeypatch.setattr(library, name, value)
    _refused("GL_|gl_block")


def test_a_library_that_lacks_a_function_is_refused(monkeypatch):
    monkeypatch.setitem(library._ARGUMENTS, "gl_not_there", (None, []))
    with pytest.raises(GlassloopError, match="another version"):
        library.library.__wrapped__()


def _with(record: np.dtype) -> np.dtype:
    names = list(record.names)
    names[0], names[3] = names[3], names[0]
    return np.dtype([(name, record.fields[name][0]) for name in names])


@pytest.mark.parametrize("what", ["RECORD", "Action"])
def test_decoding_refuses_a_chooser_with_other_records_or_actions(monkeypatch, what):
    if what == "RECORD":
        monkeypatch.setattr(chosen, what, _with(chosen.RECORD))
    else:
        numbers = {action.name: (action + 1) % len(Action) for action in Action}
        monkeypatch.setattr(chosen, what, IntEnum("Action", numbers))
    with pytest.raises(GlassloopError, match="another version"):
        chosen.check_chooser.__wrapped__(chooser)


def test_a_chooser_that_takes_them_from_decoding_is_accepted():
    chosen.check_chooser.__wrapped__(SimpleNamespace(layout={}))
