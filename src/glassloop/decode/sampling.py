"""The decoding options of one request, checked when they are made.

Each field is declared once, with its default, what is allowed and a line of help; validation, JSON and the
flags of the command line are derived from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.option import (
    OptionValue,
    anything,
    biases,
    by_stage,
    check_id,
    check_text,
    check_text_or_ids,
    filling,
    flag,
    hint,
    items,
    number,
    text,
    whole,
    wrong,
)
from glassloop.errors import SamplingError
from glassloop.util.shown import shown

DEFAULT = "default"  # stands for the default order in a list of stages
_SEED = (1 << 64) - 1


def _with_hints(cls: type[Sampling]) -> type[Sampling]:
    """Makes an unknown keyword argument an error that has the nearest option, as in `from_dict`."""
    plain = cls.__init__

    @wraps(plain)
    def init(self: Sampling, *values: Any, **options: Any) -> None:
        try:
            plain(self, *values, **options)
            return
        except TypeError as error:
            raised = error
        _check_names(options)
        raise raised

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@_with_hints
@dataclass(frozen=True)
class Sampling:
    """The decoding options of one request."""

    # What the distribution looks like
    temperature: float = number(
        1.0,
        1e-6,
        100,
        or_zero=True,
        help="Below 1 favours likely tokens, above 1 unlikely ones; 0 is greedy: always the most likely.",
    )
    top_k: int = whole(0, 0, help="Keep only the k most likely tokens; 0 keeps all.")
    top_p: float = number(
        1.0,
        0,
        1,
        above=True,
        help="Keep the smallest set of most likely tokens whose probabilities sum to this.",
    )
    min_p: float = number(
        0.0, 0, 1, help="Keep tokens that are at least this many times as likely as the most likely one."
    )
    typical_p: float = number(
        1.0,
        0,
        1,
        above=True,
        help="Keep the tokens whose surprise is closest to the entropy, up to this sum of probabilities.",
    )
    top_n_sigma: float = number(
        0.0, 0, 100, help="Keep logits within n standard deviations of the highest; 0 is off."
    )
    xtc_probability: float = number(
        0.0, 0, 1, help="The probability that XTC removes the most likely tokens of a step; 0 is off."
    )
    xtc_threshold: float = number(
        0.1,
        0,
        1,
        above=True,
        help="XTC removes tokens that are at least this likely, except the least likely of them.",
    )
    epsilon_cutoff: float = number(
        0.0, 0, 1, below=True, help="Remove tokens with a probability below this; 0 is off."
    )
    eta_cutoff: float = number(
        0.0, 0, 1, below=True, help="Like epsilon_cutoff, but milder where the entropy is high; 0 is off."
    )
    mirostat_tau: float = number(
        0.0,
        0,
        100,
        help="Mirostat: hold the surprise of the tokens near this, in bits per token, by a cut; 0 is off.",
    )
    mirostat_eta: float = number(
        0.1, 0, 1, help="How fast Mirostat moves its cut towards the target: its learning rate."
    )
    # What has been said before
    repetition_penalty: float = number(
        1.0, 0.01, 100, help="Above 1 makes tokens of the prompt and the text so far less likely; 1 is off."
    )
    presence_penalty: float = number(
        0.0, -100, 100, help="Subtracted from the logit of every token that has been generated."
    )
    frequency_penalty: float = number(
        0.0, -100, 100, help="Subtracted from a token's logit once for each time it has been generated."
    )
    no_repeat_ngram_size: int = whole(0, 0, help="Never generate the same n tokens in a row twice; 0 is off.")
    dry_multiplier: float = number(
        0.0, 0, 100, help="Strength of DRY, a penalty on tokens that continue a repetition; 0 is off."
    )
    dry_base: float = number(
        1.75, 1, 100, help="The DRY penalty grows by this factor with each repeated token."
    )
    dry_allowed_length: int = whole(2, 1, 256, help="The shortest repetition, in tokens, that DRY penalizes.")
    # Which tokens
    logit_bias: Mapping[int, float] = biases(help="Add a number to the logit of a token id.")
    allowed_token_ids: tuple[int, ...] | None = items(None, check_id, help="Generate only these tokens.")
    bad_words: tuple[str | tuple[int, ...], ...] = items(
        (), check_text_or_ids, help="Never generate these texts, or these lists of token ids."
    )
    # Luck, and how many
    seed: int | None = whole(
        None, 0, _SEED, help="Determines the luck. If absent, a random seed is used and recorded."
    )
    n: int = whole(1, 1, 1024, help="How many samples of the same prompt to generate.")
    # When it ends
    max_tokens: int = whole(256, 1, help="Stop after this many tokens.")
    min_tokens: int = whole(0, 0, help="Do not stop before this many tokens.")
    stop: tuple[str, ...] = items(
        (), check_text, help="Stop when this text appears; it is not part of the output."
    )
    stop_token_ids: tuple[int, ...] = items((), check_id, help="Stop when this token is chosen.")
    include_stop: bool = flag(False, help="Keep the stop text or token in the output.")
    ignore_eos: bool = flag(False, help="Continue after the end-of-sequence token.")
    timeout: float | None = number(None, 0, 1e9, above=True, help="Stop after this many seconds.")
    stop_on_repetition: int = whole(
        0, 0, help="Stop when the last tokens have been repeated this many times in a row; 0 is off."
    )
    # Looking back
    revise: int = whole(
        0, 0, 64, help="How many times a run may take back its last tokens when they turn out unlikely."
    )
    revise_window: int = whole(16, 2, 256, help="The number of last tokens that revise looks at.")
    revise_bits: float = number(
        4.0,
        0,
        100,
        above=True,
        help="Revise if the last tokens have more surprise than this, in bits per token.",
    )
    # Beams
    beam_width: int = whole(1, 1, 1024, help="The number of beams; 1 is no beam search.")
    length_penalty: float = number(
        1.0, -10, 10, help="A beam's score is divided by length^this; higher values favour longer texts."
    )
    early_stopping: bool = flag(False, help="End the search as soon as beam_width beams have finished.")
    # What the text must be: at most one of these
    json_schema: Mapping[str, Any] | bool | None = anything("Generate JSON that matches this schema.")
    regex: str | None = text(None, help="Generate text that matches this regular expression.")
    choice: tuple[str, ...] | None = items(None, check_text, help="Generate one of these texts.")
    grammar: str | None = text(
        None, help="Generate text that matches this grammar, in Lark's notation or GBNF."
    )
    # How it is written
    diffusion: Diffusion | None = filling(  # noqa: RUF009 (a field, like the others)
        "Write blocks of this many tokens by filling masks; or options by name: block, passes, threshold, …"
    )
    # What computes it
    adapter: str | None = text(
        None, help="The adapter (LoRA) that acts on the model, by the name that it was loaded with."
    )
    # What is recorded, and in which order
    logprobs: int = whole(5, 0, 64, help="How many alternatives to record with each token.")
    prompt_logprobs: int = whole(
        0, 0, 64, help="How many alternatives to record with each token of the prompt; 0 records none."
    )
    stages: tuple[str, ...] | None = items(
        None,
        check_text,
        help="All stages to run, by name, in this order; 'default' stands for the default order.",
    )
    stage_options: Mapping[str, Mapping[str, OptionValue]] = by_stage(
        help="An option of a stage of your own: STAGE.NAME=VALUE."
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not field.default:
                object.__setattr__(self, field.name, field.metadata["check"](field.name, value))
        _check_together(self)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Sampling:
        """Returns options from JSON or keyword arguments. An unknown name is an error, never ignored."""
        if not isinstance(options, Mapping):
            raise SamplingError(
                f"the options are {shown(options)}; a mapping from names to values is expected"
            )
        _check_names(options)
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """Returns the options as JSON has them; `from_dict` gives the same options back."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def changed(self, changes: Mapping[str, Any]) -> Sampling:
        """Returns these options with some replaced."""
        return self.from_dict(merge_options(self.to_dict(), changes))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def constraint(self) -> str | None:
        """The name of the field that constrains the text, None if there is none."""
        for name in CONSTRAINTS:
            if getattr(self, name) is not None:
                return name
        return None


def merge_options(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with some replaced. If the order of the stages is among these, stages that it leaves
    out lose their options, which would be an error otherwise."""
    merged = {**before, **changes}
    listed = changes.get("stages")
    if "stages" in changes and "stage_options" not in changes and merged.get("stage_options"):
        kept = (listed,) if isinstance(listed, str) else listed or ()
        merged["stage_options"] = {
            stage: options for stage, options in merged["stage_options"].items() if stage in kept
        }
    return merged


def _check_names(options: Mapping[str, Any]) -> None:
    """Raises if a name is not an option."""
    option_names = [field.name for field in fields(Sampling)]
    for name in options:
        if name not in option_names:
            plain = isinstance(name, str) and name.isidentifier() and len(name) <= 80
            label = name if plain else shown(name)
            raise SamplingError.about(
                label, f"is not a sampling option; {hint(label, option_names, 'options')}"
            )


CONSTRAINTS = ("json_schema", "regex", "choice", "grammar")


def _check_together(sampling: Sampling) -> None:
    constraints = [name for name in CONSTRAINTS if getattr(sampling, name) is not None]
    if len(constraints) > 1:
        message = f"{' and '.join(constraints)} are given; at most one of them is expected"
        raise SamplingError(message, field=constraints[0])
    if constraints and sampling.ignore_eos:
        raise SamplingError.about(
            "ignore_eos", f"is True together with {constraints[0]}; a constrained text must be able to end"
        )
    if sampling.stop_on_repetition == 1:
        raise wrong("stop_on_repetition", 1, "0 (off) or a whole number from 2 up")
    if sampling.stages is not None and sampling.stages.count(DEFAULT) > 1:
        raise SamplingError.about("stages", f"has {DEFAULT!r} more than once; once is expected")
    if sampling.n > sampling.beam_width > 1:
        raise wrong("n", sampling.n, f"at most beam_width, {sampling.beam_width},")
    if sampling.revise and sampling.beam_width > 1:
        raise SamplingError.about("revise", "is given with beam_width above 1; beams are not taken back")
    if sampling.revise and sampling.greedy:
        raise SamplingError.about(
            "revise", "is given with temperature 0; there is no other luck to go on with"
        )
    if sampling.min_tokens > sampling.max_tokens:
        raise wrong("min_tokens", sampling.min_tokens, f"at most max_tokens, {sampling.max_tokens},")


def _plain(value: Any) -> Any:
    if isinstance(value, Diffusion):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
