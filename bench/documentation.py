"""Writes the last table in docs/benchmarks.md, between two comments that mark its place."""

from __future__ import annotations

from bench.catalog import ROOT

FILE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write(table: str) -> None:
    FILE.write_text(replaced(FILE.read_text(), table))


def replaced(page: str, table: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{FILE.name} has no {BEGIN} and {END} around the table")
    return f"{before}{BEGIN}\n```text\n{table}\n```\n{END}{after}"
