"""Calls with a wrong argument, which must raise a `GlassloopError` that names it: never a plain TypeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REFUSED: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("explain at -1", lambda llm, run: llm.explain(run, -1)),
    ("explain at 9999", lambda llm, run: llm.explain(run, 9999)),
    ("explain at a text", lambda llm, run: llm.explain(run, "1")),
    ("explain at 1.5", lambda llm, run: llm.explain(run, 1.5)),
    ("explain shown a text", lambda llm, run: llm.explain(run, 0, shown="x")),
    ("explain of nothing", lambda llm, run: llm.explain(run, 0, of="nothing")),
    ("explain with odd luck", lambda llm, run: llm.explain(run, 0, luck="odd")),
    ("replay from 9999", lambda llm, run: llm.replay(run, first=9999)),
    ("replay from a text", lambda llm, run: llm.replay(run, first="1")),
    ("fork at a text", lambda llm, run: llm.fork(run, "1")),
    ("fork at 1.5", lambda llm, run: llm.fork(run, 1.5)),
    ("fork at 9999", lambda llm, run: llm.fork(run, 9999)),
    ("fork with the text 5", lambda llm, run: llm.fork(run, 0, text=5)),
    ("fork with token and text", lambda llm, run: llm.fork(run, 0, text="a", token=97)),
    ("fork with the token 999", lambda llm, run: llm.fork(run, 0, token=999)),
    ("fork with an unknown option", lambda llm, run: llm.fork(run, 0, temprature=1)),
    ("rewind to a text", lambda llm, run: run.rewind("1")),
    ("rewind to 9999", lambda llm, run: run.rewind(9999)),
    ("logits from 9999", lambda llm, run: llm.logits([97, 98], first=9999)),
    ("logits of a text", lambda llm, run: llm.logits("ab")),
    ("embed a text", lambda llm, run: llm.embed("x")),
    ("embed nothing", lambda llm, run: llm.embed([])),
    ("generate None", lambda llm, run: llm.generate(None)),
    ("generate 5", lambda llm, run: llm.generate(5)),
    ("generate with an unknown option", lambda llm, run: llm.generate("a", max_token=1)),
    ("generate a token 257", lambda llm, run: llm.generate([257])),
    ("infill with a dict", lambda llm, run: llm.infill("a", "b", sampling={})),
    ("infill 0 tokens", lambda llm, run: llm.infill("a", "b", 0)),
    ("rewrite outside", lambda llm, run: llm.rewrite("ab", [[1, 99]])),
    ("repair with a number as check", lambda llm, run: llm.repair("abc", check=5)),
    ("sharpen by 0", lambda llm, run: llm.sharpen("a", 0)),
    ("solve by an unknown method", lambda llm, run: llm.solve("a", "unknown")),
    ("solve with an unknown option", lambda llm, run: llm.solve("a", "vote", unknown=1)),
    ("generate with an unknown adapter", lambda llm, run: llm.generate("a", adapter="unknown")),
]
