"""Runs as CSV: one row for each token, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from glassloop.record.format.check_header import replace_surrogates
from glassloop.record.run_record import RunRecord
from glassloop.record.token import ROW


def to_csv(runs: Sequence[RunRecord]) -> str:
    """Returns a table with the tokens of runs. A cell is empty where a number is infinite or missing."""
    written = io.StringIO()
    columns = ("run", "sample", "step", "position", *ROW)
    writer = csv.DictWriter(written, columns, lineterminator="\n")
    writer.writeheader()
    for run in runs:
        writer.writerows(run.to_records())
    return replace_surrogates(written.getvalue())
