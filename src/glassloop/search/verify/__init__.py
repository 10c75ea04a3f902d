"""Verifiers: functions that say of a text whether it passes, and how well.

`checks.py` has the plain ones, `ifeval.py` the instructions of IFEval, `unit_tests.py` runs code in the
process of `sandbox.py`, and `likelihood.py` asks another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassloop.search.verdict import Verifier


def find_verifier(given: str | Verifier, field: str = "verify") -> Verifier:
    """Returns the verifier that a name stands for, or the function itself: see `checks.find_verifier`."""
    from glassloop.search.verify.checks import find_verifier as find

    return find(given, field)
