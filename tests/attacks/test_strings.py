"""Stop strings, bad words, choices and lists of ids, as texts and as lists, as long as a body may be: refused
or taken at a cost that no other client notices.
"""

from __future__ import annotations

from typing import Any

import pytest
from attacks.harness import Server, Watch, left_behind, standing
from attacks.limits import FACTOR, LIMITS

_ASK = {"prompt": "Once upon a time", "max_tokens": 4, "seed": 1, "ignore_eos": True}
_MILLION = 1_000_000


def _periodic(size: int) -> str:
    """Matches itself almost everywhere: what string automata like least."""
    return "ab" * (size // 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", _periodic(7_000_000)),
        ("stop", "a" * 5000),
        ("stop", [_periodic(5000)]),
        ("stop", ["x"] * 65),
        ("bad_words", "x" * _MILLION),
        ("bad_words", "y" * 5000),
        ("bad_words", [_periodic(5000)]),
        ("bad_words", ["x"] * 3000),
        ("bad_words", [[1] * _MILLION]),
        ("choice", "a" * _MILLION),
        ("choice", ["x" * 5000]),
        ("choice", [f"c{number}" for number in range(3000)]),
        ("allowed_token_ids", list(range(100_000)) * 9),
        ("stop_token_ids", [7] * _MILLION),
        ("logit_bias", {str(number): 1.0 for number in range(100_000)}),
        ("stages", ["temperature"] * 100_000),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else type(value).__name__,
)
def test_too_much_is_refused_before_it_costs(tiny: Server, field: str, value: Any) -> None:
    body = {key: each for key, each in _ASK.items() if key != "ignore_eos"} | {field: value}
    with Watch(tiny) as watch:
        answer = tiny.post("/v1/completions", body)
    assert answer.status == 400, answer.body[:200]
    error = answer.error
    assert field in f"{error['param']} {error['message']}" and len(error["message"]) < 500
    watch.report.check()


@pytest.mark.parametrize(
    "options",
    [
        {"stop": ["a" * 4000, _periodic(4000), "z" * 4096]},
        {"stop": [_periodic(2 * n + 2) for n in range(60)], "n": 16},
        {"bad_words": ["x" * 4096] * 8 + [_periodic(4096)]},
        {"bad_words": [f" word{number}" for number in range(1000)]},
        {"bad_words": [[260] * 60] * 200},
        {"logit_bias": {str(number): 0.5 for number in range(1000)}, "n": 16},
        {
            "no_repeat_ngram_size": 3,
            "dry_multiplier": 1.0,
            "repetition_penalty": 1.1,
            "stop_on_repetition": 1000,
        },
    ],
    ids=lambda options: " ".join(options),
)
def test_what_is_allowed_does_not_grow_with_the_text(real: Server, options: dict[str, Any]) -> None:
    """A long prompt that the words nearly match, at the limits of what is taken: other streams go on."""
    words = 1500 if FACTOR else 400
    body = {**_ASK, "prompt": " international" * words, "max_tokens": 12, **options}
    before = standing(real)
    with Watch(real, canary=True) as watch:
        answer = real.post("/v1/completions", body)
    assert answer.status in (200, 400), answer.body[:300]
    watch.report.check(canary=True)
    left_behind(real, before)


def test_samples_share_what_their_stop_strings_cost(tiny: Server) -> None:
    """The same stop strings for 1 and for 64 samples: memory grows with the samples, not with copies."""
    stops = {"stop": [_periodic(4000 - number) for number in range(30)]}
    grown = []
    for count in (1, 64):
        with Watch(tiny) as watch:
            answer = tiny.post("/v1/completions", {**_ASK, **stops, "n": count, "max_tokens": 2})
        assert answer.status in (200, 400)
        grown.append(watch.report.check().grown)
    assert grown[1] < grown[0] + LIMITS.memory // 3, grown
