"""Files of strangers, made up by mutation: runs, models in both formats, and chat templates. Each is used or
refused in one line; none ends the process, takes for ever, or takes the machine's memory. The native library
is fed the same under AddressSanitizer and UBSan.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from attacks import batches
from attacks.inputs import KINDS, make
from attacks.limits import FACTOR, SEED, cases
from ops.sanitized import sanitized_environment

_NORMAL = {"glass": 250, "gguf": 250, "safetensors": 250, "typed": 200, "quantized": 250, "template": 40}
_SECONDS = 30.0  # that one input may take


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_and_a_number_make_the_same_input_again(kind: str, tmp_path: Path) -> None:
    once = [make(kind, SEED, number, tmp_path) for number in range(100)]
    assert [make(kind, SEED, number, tmp_path) for number in range(100)] == once


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_are_used_or_refused_in_one_line(kind: str) -> None:
    until = float("inf") if FACTOR else time.monotonic() + 90
    batches.run(kind, SEED, cases(_NORMAL[kind]), seconds=_SECONDS, until=until, most_findings=10).check()


@pytest.mark.parametrize("kind", ["glass", "gguf", "safetensors", "typed", "quantized"])
def test_no_byte_out_of_bounds_with_mutated_files(kind: str) -> None:
    """Numbers other than those above, so that the sanitizers see inputs of their own."""
    env = sanitized_environment()
    until = float("inf") if FACTOR else time.monotonic() + 60
    first = 1_000_000
    tally = batches.run(kind, SEED, cases(40), first=first, seconds=60, env=env, until=until, most_findings=5)
    tally.heavy.clear()  # the sanitizers keep freed memory for a while
    tally.check()
