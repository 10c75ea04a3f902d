"""The same prompts with the same luck under two models, and what is different then.

Since luck is a hash of the seed, the branch, the place and the token, both models draw with the same luck
everywhere: where their answers part, the models themselves differ, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from glassloop.contrast.report import ContrastReport, Measured, Parting, Remedy, Side
from glassloop.contrast.tensors import RunPlace, count_back, find_tensor
from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import complete
from glassloop.engine.local import LocalModel
from glassloop.engine.logits import logits_after
from glassloop.engine.replay import decoder_at
from glassloop.engine.request import draw_seed
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.graft import why_not
from glassloop.model.loader import ModelFiles, bytes_as
from glassloop.ops.quant import Float32
from glassloop.ops.weight_memory import weight_bytes
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.search.extract import find_extractor
from glassloop.search.verdict import Extractor
from glassloop.util.check import check_count
from glassloop.util.shown import shown
from glassloop.util.statistics import wilson

MEASURED = 1000  # tokens over which KL is measured, unless the caller says otherwise
TENSORS = 5  # partings whose weights are looked for
_REMEDY = 2  # weights that are given back together, at most
# What a contrast cannot have: one choice after another is what it compares.
_REFUSED = ("n", "beam_width", "diffusion", "revise")


@dataclass(frozen=True)
class _Pair:
    """Both models."""

    first: LocalModel
    second: LocalModel


def contrast(
    first: LocalModel,
    second: LocalModel,
    prompts: Sequence[Any],
    sampling: Sampling,
    *,
    adapter: str | None = None,
    extract: Any = None,
    tensors: int = TENSORS,
    measured: int = MEASURED,
    progress: bool | None = None,
    deadline: Deadline | None = None,
) -> ContrastReport:
    """Generates the answers to prompts (texts, token ids or lists of messages) with both models, and
    compares them.

    `sampling` is for both; `adapter` is the adapter of the second model alone. `extract` finds the value of
    an answer, as in `solve`; without it answers are compared as texts. For at most `tensors` partings the
    weights that turned the token are looked for. KL is measured over about `measured` tokens. `progress`
    shows a bar.
    """
    _check(first, second, prompts, sampling)
    check_count("tensors", tensors, 0, 1 << 20)
    check_count("measured", measured, 0, 1 << 30)
    extractor = None if extract is None else find_extractor(extract)
    pair = _Pair(first, second)
    seed = draw_seed() if sampling.seed is None else sampling.seed
    options = [replace(sampling, seed=list_seed(seed, number)) for number in range(len(prompts))]
    ids = [_token_ids(first, number, prompt) for number, prompt in enumerate(prompts)]
    runs = _generate(first, ids, options, progress, deadline)
    with_adapter = [replace(each, adapter=adapter or each.adapter) for each in options]
    others = _generate(second, ids, with_adapter, progress, deadline)
    partings = [
        _parting(number, one, other, extractor)
        for number, (one, other) in enumerate(zip(runs, others, strict=True))
    ]
    kl, flipped, tokens, texts = _measure(pair, runs, others, measured, deadline)
    note = _why_no_tensors(pair, sampling, adapter) if tensors else "tensors=0"
    remedies: list[Remedy] = []
    if note is None:
        partings = _with_tensors(pair, partings, tensors, deadline)
        remedies = _remedies(pair, partings, deadline)
    return ContrastReport(
        (_label(first, second), _label(second, first, adapter)),
        tuple(partings),
        kl,
        wilson(flipped, tokens),
        tokens,
        texts,
        tuple(remedies),
        note,
    )


def _check(first: LocalModel, second: LocalModel, prompts: Sequence[Any], sampling: Sampling) -> None:
    if not isinstance(second, LocalModel):
        raise GlassloopError.about("other", f"is {shown(second)}; a model in this process is expected")
    if not isinstance(prompts, list | tuple) or not prompts:
        raise GlassloopError.about("prompts", f"is {shown(prompts)}; a list of prompts is expected")
    plain = Sampling()
    for name in _REFUSED:
        if getattr(sampling, name) != getattr(plain, name):
            problem = (
                f"is {shown(getattr(sampling, name))}; a contrast compares single answers, token by token"
            )
            raise SamplingError.about(name, problem)
    size = first.tokenizer.vocab_size
    if size != second.tokenizer.vocab_size or any(
        first.tokenizer.token_bytes(id) != second.tokenizer.token_bytes(id) for id in range(size)
    ):
        raise GlassloopError.about(
            "other",
            f"is {second.name}, which has other tokens than {first.name}: the same luck means nothing",
        )


def _token_ids(llm: LocalModel, number: int, prompt: Any) -> list[int]:
    """Returns a prompt as token ids, which both models are given: their templates may differ."""
    try:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            return llm.prepare_chat(prompt, Sampling()).runs[0].prompt_ids
        return llm.prepare(prompt, Sampling()).runs[0].prompt_ids
    except GlassloopError as error:
        raise GlassloopError(f"prompts[{number}]: {error}", field="prompts") from None


def _generate(
    llm: LocalModel,
    prompts: Sequence[list[int]],
    options: Sequence[Sampling],
    progress: bool | None,
    deadline: Deadline | None,
) -> list[Run]:
    if deadline is not None:
        deadline.check()
    requests = [llm.prepare(ids, sampling) for ids, sampling in zip(prompts, options, strict=True)]
    complete(llm.engine, requests, progress)
    for request in requests:
        if request.runs[0].error is not None:
            raise request.runs[0].error
    return [request.runs[0] for request in requests]


def _records(run: Run) -> list[Token]:
    return run.tokens if run.end is None else [*run.tokens, run.end]


def _parting(number: int, run: Run, other: Run, extractor: Extractor | None) -> Parting:
    one, two = _records(run), _records(other)
    ids = [token.id for token in one], [token.id for token in two]
    values = (None, None) if extractor is None else (extractor(run.text), extractor(other.text))
    changed = run.text != other.text if extractor is None else values[0] != values[1]
    runs = run, other
    if ids[0] == ids[1]:
        return Parting(number, None, None, None, changed, values, runs=runs)
    pairs = enumerate(zip(*ids, strict=False))
    at = next((at for at, (id, second) in pairs if id != second), min(map(len, ids)))
    return Parting(number, at, _side(one, at), _side(two, at), changed, values, runs=runs)


def _side(records: Sequence[Token], at: int) -> Side:
    if at == len(records):
        return Side(None, "", 0.0, 0.0)
    token = records[at]
    return Side(token.id, token.piece, token.logprob, token.margin)


# ── how much the models differ ─────────────────────────────────────────────────────────────────────────────


def _measure(
    pair: _Pair, runs: Sequence[Run], others: Sequence[Run], most: int, deadline: Deadline | None
) -> tuple[Measured, int, int, int]:
    """Returns KL over answers of the first model, how many of their tokens the second one would not have
    chosen, and over how many tokens and texts that is. The texts are taken evenly from the list."""
    flipped, means, lengths = 0, list[float](), list[int]()
    average = max(1, sum(len(_records(run)) for run in runs) // len(runs))
    texts = min(len(runs), -(-most // average))
    for place in range(texts):
        number = place * len(runs) // texts
        run, other = runs[number], others[number]
        records = _records(run)
        if not records:
            continue
        decoder = decoder_at(pair.second, other, 0)
        sums = 0.0
        for token, row, theirs in zip(records, *_rows(pair, run, other, deadline), strict=True):
            sums += _kl(row, theirs)
            flipped += decoder.choose(theirs).id != token.id
            decoder.commit(token.id, token.chosen)
        means.append(sums / len(records))
        lengths.append(len(records))
    tokens = sum(lengths)
    if not tokens:
        return Measured(0.0, 0.0), 0, 0, 0
    weights = np.array(lengths) / tokens
    mean = float(np.dot(weights, means))
    spread = float(np.sum(weights**2 * (np.array(means) - mean) ** 2))  # of texts, each with its length
    error = sqrt(spread * len(means) / (len(means) - 1)) if len(means) > 1 else 0.0
    return Measured(mean, error), flipped, tokens, len(lengths)


def _rows(
    pair: _Pair, run: Run, other: Run, deadline: Deadline | None
) -> tuple[Iterator[Float32], Iterator[Float32]]:
    """Returns the logits of both models before each token of a run of the first one."""
    ids = [*run.prompt_ids, *[token.id for token in _records(run)][:-1]]
    first = len(run.prompt_ids) - 1
    sides = ((pair.first, run), (pair.second, other))
    one, two = (
        logits_after(llm.engine, ids, first, deadline, llm.adapter_number(each.sampling.adapter))
        for llm, each in sides
    )
    return one, two


def _kl(row: Float32, other: Float32) -> float:
    """Returns the KL divergence of two rows of logits, in nats."""
    shifted, theirs = row - row.max(), other - other.max()
    weights = np.exp(shifted)
    total = float(weights.sum(dtype=np.float64))
    normalizer = np.log(float(np.exp(theirs).sum(dtype=np.float64))) - np.log(total)
    with np.errstate(invalid="ignore"):  # minus infinity in both, which has no weight
        moved = np.where(weights > 0, shifted - theirs, 0)
    return max(0.0, float(np.dot(weights.astype(np.float64), moved)) / total + float(normalizer))


# ── which weights did it ───────────────────────────────────────────────────────────────────────────────────


def _why_no_tensors(pair: _Pair, sampling: Sampling, adapter: str | None) -> str | None:
    if adapter is not None or sampling.adapter is not None:
        return "an adapter answers, not other weights"
    return why_not(pair.first.transformer, pair.second.transformer)


def _with_tensors(
    pair: _Pair, partings: Sequence[Parting], most: int, deadline: Deadline | None
) -> list[Parting]:
    """Looks for the weights of some partings: of answers that changed first, then of those that part soon,
    which are the cheapest."""
    flips = [
        each
        for each in partings
        if each.at is not None and each.first is not None and each.first.id is not None
    ]
    chosen = sorted(flips, key=lambda each: (not each.changed, each.at))[:most]
    weights = {each.prompt: find_tensor(pair.first, pair.second, _place(each), deadline) for each in chosen}
    results = []
    for parting in partings:
        turning = weights.get(parting.prompt)
        if turning is not None:
            parting = replace(parting, tensor=turning.name, alone=turning.alone)
        results.append(parting)
    return results


def _place(parting: Parting) -> RunPlace:
    assert parting.runs is not None and parting.at is not None
    return RunPlace(parting.runs[0], parting.at)


def _remedies(pair: _Pair, partings: Sequence[Parting], deadline: Deadline | None) -> list[Remedy]:
    """Returns what it brings to give the weights back that turned the most tokens: the first alone, then more
    of them together."""
    looked = [each for each in partings if each.tensor is not None]
    ranked = [name for name, _ in Counter(each.tensor for each in looked).most_common(_REMEDY) if name]
    places = [_place(each) for each in looked]
    results = []
    for count in range(1, len(ranked) + 1):
        names = tuple(ranked[:count])
        back = count_back(pair.first, pair.second, names, places, deadline)
        results.append(Remedy(names, _more_bytes(pair, names), back, len(places)))
    return results


def _more_bytes(pair: _Pair, names: Sequence[str]) -> int:
    """Returns how many bytes more some weights of the first model take in its file than the second's."""
    ours, theirs = (_bytes_by_name(llm, names) for llm in (pair.first, pair.second))
    return ours - theirs


def _bytes_by_name(llm: LocalModel, names: Sequence[str]) -> int:
    if llm.path == Path():  # a model without files
        return 0
    tensors = ModelFiles(llm.path).weights
    named = [
        tensor
        for name, tensor in tensors.items()
        if any(name == f"{each}.weight" or name.startswith(f"{each}_") for each in names)
    ]
    return weight_bytes(named, bytes_as(llm.transformer.ops, llm.weights))


def _label(llm: LocalModel, other: LocalModel, adapter: str | None = None) -> str:
    """Returns the name of a model, with what tells it from the other one if that has the same name."""
    if adapter is not None:
        return f"{llm.name} with {adapter}"
    if llm.name != other.name:
        return llm.name
    if llm.weights != other.weights:
        return llm.name if llm.weights is None else f"{llm.name} in {llm.weights}"
    return f"{llm.name} on {llm.op_set}" if llm.op_set != other.op_set else str(llm.path)
