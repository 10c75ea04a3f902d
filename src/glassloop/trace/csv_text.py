"""Runs as CSV: one row for each token, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from glassloop.trace.run import Run
from glassloop.trace.validate import replace_surrogates

_COLUMNS = (
    *("id", "text", "logprob", "raw_logprob", "rank", "rank_after", "entropy", "luck", "margin"),
    *("runner_up", "source", "seconds"),
)


def to_csv(runs: Sequence[Run]) -> str:
    """Returns a table with the tokens of runs. A cell is empty where a number is infinite or missing."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["run", "step", "piece", *_COLUMNS])
    for run in runs:
        for step, token in enumerate(run.tokens):
            plain = token.to_dict()
            writer.writerow([run.id, step, token.piece, *(plain[name] for name in _COLUMNS)])
    return replace_surrogates(written.getvalue())
