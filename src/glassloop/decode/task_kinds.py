"""Which options of `Sampling` act in which kind of task, as one table.

An option that is given acts, or it is refused by name; none is ignored. The table lists the refusals of each
kind of task with what to use instead: every other option acts. The code that prepares a task asks its kind to
check the options (`FORK.check(options)`), so Python, terminal and server refuse the same. `markdown` writes
the table of docs/decoding.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError
from glassloop.util.shown import shown

OPTIONS = tuple(field.name for field in fields(Sampling))
_PLAIN = Sampling()

# Parameters of something that another option turns on. While that is off, a parameter has nothing to do and
# is not refused; in a task that refuses the option, its parameters are refused too.
NEEDS = {
    "xtc_threshold": "xtc_probability",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "mirostat_eta": "mirostat_tau",
    "revise_window": "revise",
    "revise_bits": "revise",
    "length_penalty": "beam_width",
    "early_stopping": "beam_width",
}


@dataclass(frozen=True, eq=False)
class TaskKind:
    """A kind of task, with the options that it refuses and why; all others act."""

    name: str
    refused: Mapping[str, str]

    def check(self, sampling: Sampling, own: Sampling = _PLAIN) -> None:
        """Raises for the first option that was given and that this kind of task refuses. An option counts as
        given if it differs from its default and from `own`: the options that the task has by itself, such as
        those of the run that is forked."""
        if not isinstance(sampling, Sampling):
            raise SamplingError.about("sampling", f"is {shown(sampling)}; a Sampling is expected")
        for name, reason in self.refused.items():
            value = getattr(sampling, name)
            if value != getattr(_PLAIN, name) and value != getattr(own, name):
                problem = f"is {shown(value)}; {self.name} does not take it: {reason}"
                raise SamplingError.about(name, problem)

    def check_recorded(self, sampling: Sampling) -> None:
        """Checks the options of a recorded run, which may have parameters of something that is off."""
        self.check(sampling, replace(_PLAIN, **{name: getattr(sampling, name) for name in NEEDS}))

    def acting(self, sampling: Sampling) -> Sampling:
        """Returns options without those that this kind of task refuses: a record of an earlier version may
        have some that were ignored then."""
        return replace(sampling, **{name: getattr(_PLAIN, name) for name in self.refused})


def _kind(name: str, *refusals: tuple[str, str]) -> TaskKind:
    """Returns a kind of task from pairs of options, separated by spaces, and the reason for their refusal. If
    an option is refused, so are its parameters, for the same reason."""
    reasons = {option: reason for options, reason in refusals for option in options.split()}
    reasons |= {name: reasons[option] for name, option in NEEDS.items() if option in reasons}
    assert reasons.keys() <= set(OPTIONS)
    return TaskKind(name, {option: reasons[option] for option in OPTIONS if option in reasons})


_ENDINGS = "stop stop_token_ids include_stop ignore_eos stop_on_repetition"
_LEFT_TO_RIGHT = ("diffusion", "it draws from left to right")
_NO_RECORD = ("mirostat_tau", "it follows the surprise of the tokens before, which masks have not")

SAMPLE = _kind("a sample")
SAMPLES = _kind("n samples")
BEAMS = _kind(
    "a beam search",
    ("revise", "beams are not taken back"),
    ("diffusion", "diffusion fills one text at a time"),
)
REVISE = _kind(
    "revision",
    ("beam_width", "beams are not taken back"),
    ("diffusion", "diffusion has a revise of its own, diffusion={'revise': 1}"),
)
DIFFUSION = _kind(
    "diffusion",
    ("beam_width", "it fills one text at a time"),
    ("revise", "it has a revise of its own, diffusion={'revise': 1}"),
    ("adapter", "it has an adapter of its own, for masked rows"),
    ("prompt_logprobs", "it does not score the prompt"),
    _NO_RECORD,
)
FORK = _kind(
    "a fork",
    ("beam_width", "it continues one branch"),
    ("diffusion", "only whole answers are written by filling masks"),
)
CONTINUE = _kind(
    "a run that is continued",
    ("beam_width", "a beam search cannot be continued"),
    ("diffusion", "a text that was written by filling masks cannot be continued"),
)
WHAT_IF = _kind(
    "a what-if",
    (
        f"n max_tokens {_ENDINGS.replace('stop_token_ids ', '')} timeout revise beam_width",
        "it asks for one choice, which this cannot change; a fork shows what it does",
    ),
    ("diffusion", "it asks for one choice of the run as it was written"),
    ("logprobs", "shown= says how many candidates are listed"),
    ("prompt_logprobs", "of='prompt' asks about a token of the prompt"),
)
SOLVE = _kind(
    "a search",
    ("n", "the n of its method says how many paths there are"),
    ("beam_width", "its paths are sampled; the method 'beam' keeps the best of them"),
    ("revise", "its method decides which paths go on"),
    _LEFT_TO_RIGHT,
)


def _spans(name: str, *others: tuple[str, str]) -> TaskKind:
    """Returns a kind of task that draws replacements for spans of a text."""
    return _kind(
        name,
        ("n", "candidates= says how many replacements are drawn"),
        ("max_tokens min_tokens", "tokens= says how long a replacement is"),
        (_ENDINGS, "tokens= or a constraint (regex, choice, …) says where a replacement ends"),
        ("revise", "a replacement is judged as a whole"),
        ("beam_width", "replacements are drawn one by one"),
        ("prompt_logprobs", "the text before a replacement is not drawn"),
        *others,
    )


_NO_DRAWS = ("timeout", "there is no draw that it could end; deadline= bounds the edit as a whole")
_BY_MASKS = (
    _NO_DRAWS,
    ("adapter", "masks have an adapter of their own"),
    ("diffusion", "diffusion= is an argument of its own here"),
    _NO_RECORD,
)
INFILL = _spans("infill", ("diffusion", "proposer='diffusion' fills masks"))
INFILL_MASKS = _spans("infill by masks", *_BY_MASKS)
REWRITE = _spans("rewrite", _LEFT_TO_RIGHT)
REPAIR = _spans("repair", ("diffusion", "proposer='diffusion' replaces tokens by what masks expect"))
REPAIR_CHECK = _kind(
    "repair with a verifier",
    ("n", "candidates= says how many ends are drawn"),
    ("revise", "the verifier decides what is taken back"),
    ("beam_width", "ends are drawn one by one"),
    ("prompt_logprobs", "the prompt is not drawn"),
    _LEFT_TO_RIGHT,
)
REPAIR_MASKS = _kind(
    "repair by masks",
    (
        " ".join(name for name in OPTIONS if name not in ("allowed_token_ids", "seed")),
        "nothing is drawn, so only allowed_token_ids has something to do",
    ),
    ("diffusion", "nothing is filled: masks only say which tokens they expect"),
    _NO_DRAWS,
)
SHARPEN = _kind(
    "power sampling",
    ("n", "it draws one text; the same prompt several times gives several"),
    ("beam_width", "it draws from p^alpha"),
    ("revise", "what is taken back has no place in p^alpha"),
    _LEFT_TO_RIGHT,
)

KINDS: Mapping[str, TaskKind] = {
    "sample": SAMPLE,
    "n": SAMPLES,
    "beams": BEAMS,
    "revise": REVISE,
    "diffusion": DIFFUSION,
    "fork": FORK,
    "continue": CONTINUE,
    "what-if": WHAT_IF,
    "solve": SOLVE,
    "infill": INFILL,
    "infill by masks": INFILL_MASKS,
    "rewrite": REWRITE,
    "repair": REPAIR,
    "repair, check=": REPAIR_CHECK,
    "repair by masks": REPAIR_MASKS,
    "sharpen": SHARPEN,
}


def kind_of(sampling: Sampling) -> TaskKind:
    """Returns the kind of task that options make of a prompt, if it is not written by diffusion."""
    if sampling.beam_width > 1:
        return BEAMS
    return REVISE if sampling.revise else SAMPLE if sampling.n == 1 else SAMPLES


# ── for the docs ───────────────────────────────────────────────────────────────────────────────────────────


def markdown() -> str:
    """Returns the tables of docs/decoding.md: where each option acts, why it is refused elsewhere, and which
    options are parameters of others."""
    rows: dict[tuple[bool, ...], list[str]] = {}
    for option in OPTIONS:
        rows.setdefault(tuple(option not in kind.refused for kind in KINDS.values()), []).append(option)
    marks = [[_names(options), *("✓" if acts else "–" for acts in row)] for row, options in rows.items()]
    tasks: dict[tuple[str, str], list[str]] = {}  # by options and reason
    for title, kind in KINDS.items():
        by_reason: dict[str, list[str]] = {}
        for option, reason in kind.refused.items():
            by_reason.setdefault(reason, []).append(option)
        for reason, options in by_reason.items():
            most = len(options) > len(OPTIONS) // 2
            tasks.setdefault(("all others" if most else _names(options), reason), []).append(title)
    reasons = [["; ".join(titles), *refused_options] for refused_options, titles in tasks.items()]
    turned_on = dict.fromkeys(NEEDS.values())
    needs = [
        [_names([name for name in NEEDS if NEEDS[name] == option]), f"`{option}`"] for option in turned_on
    ]
    return "\n\n".join(
        [
            _table(["option", *KINDS], marks),
            _table(["task", "refused", "why, and what to use instead"], reasons),
            _table(["parameter", "has nothing to do without"], needs),
        ]
    )


def _names(options: list[str]) -> str:
    return ", ".join(f"`{option}`" for option in options)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(markdown())
