"""Glassloop: a text-generation engine you can see through.

    from glassloop import LLM
    run = LLM().generate("The capital of France is", max_tokens=8)

Names are loaded when they are first used, so `import glassloop` costs next to nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassloop.api.llm import LLM as LLM
    from glassloop.decode.candidates import Candidates as Candidates
    from glassloop.decode.chain import DEFAULT_ORDER as DEFAULT_ORDER
    from glassloop.decode.partial_json import partial_json as partial_json
    from glassloop.decode.partial_json import stream_json as stream_json
    from glassloop.decode.plugins import load_plugin as load_plugin
    from glassloop.decode.sampling import Sampling as Sampling
    from glassloop.decode.stage import Step as Step
    from glassloop.decode.stage import stage as stage
    from glassloop.edit.record import Edit as Edit
    from glassloop.engine.receipts import verify as verify
    from glassloop.errors import GlassloopError as GlassloopError
    from glassloop.errors import ModelError as ModelError
    from glassloop.errors import NoMemoryError as NoMemoryError
    from glassloop.errors import RegistryError as RegistryError
    from glassloop.errors import SamplingError as SamplingError
    from glassloop.errors import TextError as TextError
    from glassloop.errors import TraceError as TraceError
    from glassloop.record.diff import diff as diff
    from glassloop.record.receipt import Receipt as Receipt
    from glassloop.record.run import Run as Run
    from glassloop.record.run import TakenBack as TakenBack
    from glassloop.record.store.store import Store as Store
    from glassloop.record.token import Token as Token
    from glassloop.search.budget import Budget as Budget
    from glassloop.search.decorators import search_method as search_method
    from glassloop.search.decorators import verifier as verifier
    from glassloop.search.search import Search as Search
    from glassloop.search.solution import Solution as Solution
    from glassloop.search.verdict import Verdict as Verdict

_HOMES = {
    "LLM": "glassloop.api.llm",
    "Edit": "glassloop.edit.record",
    "Run": "glassloop.record.run",
    "Receipt": "glassloop.record.receipt",
    "verify": "glassloop.engine.receipts",
    "Store": "glassloop.record.store.store",
    "diff": "glassloop.record.diff",
    "Token": "glassloop.record.token",
    "Budget": "glassloop.search.budget",
    "Search": "glassloop.search.search",
    "search_method": "glassloop.search.decorators",
    "verifier": "glassloop.search.decorators",
    "Solution": "glassloop.search.solution",
    "Verdict": "glassloop.search.verdict",
    "TakenBack": "glassloop.record.run",
    "Sampling": "glassloop.decode.sampling",
    "stage": "glassloop.decode.stage",
    "DEFAULT_ORDER": "glassloop.decode.chain",
    "load_plugin": "glassloop.decode.plugins",
    "Candidates": "glassloop.decode.candidates",
    "Step": "glassloop.decode.stage",
    "partial_json": "glassloop.decode.partial_json",
    "stream_json": "glassloop.decode.partial_json",
    "GlassloopError": "glassloop.errors",
    "ModelError": "glassloop.errors",
    "NoMemoryError": "glassloop.errors",
    "RegistryError": "glassloop.errors",
    "SamplingError": "glassloop.errors",
    "TextError": "glassloop.errors",
    "TraceError": "glassloop.errors",
}
__all__ = list(_HOMES)

# OpenBLAS (in NumPy) starts threads on import, which spin for 30 ms before they sleep and slow down loading a
# model. This makes them sleep at once; they have little to do here.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'glassloop' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
