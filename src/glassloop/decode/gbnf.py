"""Grammars in GBNF, llama.cpp's notation, as grammars in Lark's notation, which llguidance reads."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from glassloop.errors import SamplingError
from glassloop.util.shown import printable

_RULE = re.compile(r"^\s*[A-Za-z][A-Za-z0-9_-]*\s*::=", re.M)
_LONGEST = 100_000  # characters, which take about a second


def is_gbnf(grammar: str) -> bool:
    """Returns whether a grammar has a rule in GBNF: a name and `::=`, which Lark does not have."""
    return _RULE.search(grammar) is not None


def lark_of(field: str, grammar: str) -> str:
    """Returns a grammar in GBNF in Lark's notation; `root` becomes `start`. Raises with the place of what is
    wrong."""
    if len(grammar) > _LONGEST:
        problem = f"has {len(grammar)} characters in GBNF; at most {_LONGEST} are expected"
        raise SamplingError.about(field, problem)
    try:
        return str(gbnf_to_lark(grammar))
    except RecursionError:
        reason = "it is nested too deeply"
    except Exception as error:  # the library raises plain ones for rules that are missing
        reason = str(error)
    raise SamplingError.about(field, f"cannot be read as GBNF: {printable(reason, 300)}")
