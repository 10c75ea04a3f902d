"""The server's log: one JSON object a line, on stderr. What people wrote is not in it unless asked for."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

from glassloop.trace.run import Run


class Log:
    def __init__(self, prompts: bool = False, stream: TextIO | None = None) -> None:
        self._prompts = prompts
        self._stream = stream or sys.stderr

    def __call__(self, event: str, **details: Any) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        line = json.dumps({"time": stamp, "event": event, **details}, ensure_ascii=True, default=str)
        print(line, file=self._stream, flush=True)

    def run(self, run: Run, text: str | None) -> None:
        """A run has ended; `text` is its prompt's."""
        shown = {"prompt": text, "text": run.text} if self._prompts else {}
        self(
            "run",
            run=run.id,
            finish_reason=run.finish_reason,
            prompt_tokens=len(run.prompt_ids),
            completion_tokens=len(run.tokens),
            cached_tokens=run.cached_tokens,
            queue=round(run.timings.queue, 4),
            prefill=round(run.timings.prefill, 4),
            decode=round(run.timings.decode, 4),
            **({"error": str(run.error)} if run.error is not None else {}),
            **shown,
        )
