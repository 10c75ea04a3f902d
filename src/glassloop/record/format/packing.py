"""The records of many tokens as columns, and back: small, and the same to the last bit.

A log-probability is a float64 that was computed as `logit - log_sum_exp` from a float32 logit, and after the
stages as `logit · scale - log_sum_exp_after`. So a file keeps the float32 logit, and of the logit after the
stages only the bits that differ. The writer computes every number again; one that would not come back exactly
(this is rare) is kept whole in a column of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from sys import float_info
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.chosen import ALTERNATIVE, RECORD, Chosen, pack_alternatives
from glassloop.errors import TraceError
from glassloop.ops.rows import Float64
from glassloop.record.format.check_header import replace_surrogates
from glassloop.record.format.columns import Column, blobs, blobs_back, texts, texts_back
from glassloop.record.token import Pieces, Source, Token

SOURCES: tuple[Source, ...] = ("sampled", "forced", "draft", "beam", "mask")
Range = tuple[float, float]
_FINITE = (-float_info.max, float_info.max)


class ColumnSpec(NamedTuple):
    """What a column of a `.glass` file may hold."""

    type: str
    length: str = ""  # "records", or the column that has as many numbers; empty where other checks decide
    range: Range | None = None  # of every number; NaN is in no range


# Every column of the format. Those that `Chosen` has too are its numbers as they are, with -1 for None.
COLUMNS = {
    "slots": ColumnSpec("u1", "records", (1, 255)),
    "rank": ColumnSpec("u4", "records"),
    "rank_after": ColumnSpec("u4", "records"),
    "entropy": ColumnSpec("f8", "records", _FINITE),
    "log_sum_exp": ColumnSpec("f8", "records", _FINITE),
    "log_sum_exp_after": ColumnSpec("f8", "records", _FINITE),
    "scale": ColumnSpec("f8", "records", _FINITE),
    "luck": ColumnSpec("f8", "records", _FINITE),
    "margin": ColumnSpec("f8", "records", (-inf, inf)),  # infinite where no other token was left
    "runner_up": ColumnSpec("i4", "records", (-1, inf)),
    "survivors": ColumnSpec("i4", "records", (-1, inf)),
    "source": ColumnSpec("u1", "records", (0, len(SOURCES) - 1)),
    "sample": ColumnSpec("u2", "records"),
    "seconds": ColumnSpec("f8", "records", (0, float_info.max)),
    "text_lengths": ColumnSpec("u4", "records"),
    "ids": ColumnSpec("i4", "", (0, inf)),
    "logits": ColumnSpec("f4", "ids"),
    "changes": ColumnSpec("u4", "ids"),
    "odd_raw_at": ColumnSpec("u4"),
    "odd_raw": ColumnSpec("f8", "odd_raw_at"),
    "odd_after_at": ColumnSpec("u4"),
    "odd_after": ColumnSpec("f8", "odd_after_at"),
    "piece_steps": ColumnSpec("u4"),
    "piece_lengths": ColumnSpec("u4", "piece_steps"),
    "odd_bytes_ids": ColumnSpec("i4"),
    "odd_bytes_lengths": ColumnSpec("u4", "odd_bytes_ids"),
    "text": ColumnSpec("u1"),
    "pieces": ColumnSpec("u1"),
    "odd_bytes": ColumnSpec("u1"),
}
# Columns in which a run that another engine computed has NaN for what is not known.
MAY_BE_UNKNOWN = ("entropy", "log_sum_exp", "log_sum_exp_after", "scale", "luck", "margin")
_OF_CHOICE = tuple(name for name in RECORD.names or () if name in COLUMNS)
Float32s = NDArray[np.float32]


def pack_tokens(tokens: Sequence[Token]) -> dict[str, Column]:
    """Returns the columns of some tokens. Each token has a row of slots: itself, then its alternatives."""
    chosen = [token.chosen for token in tokens]
    slots = np.array([1 + len(each.packed_alternatives) // ALTERNATIVE.itemsize for each in chosen], np.uint8)
    # The bytes of a choice begin with the fields of an alternative.
    rows = [each.data[: ALTERNATIVE.itemsize] + each.packed_alternatives for each in chosen]
    named = np.frombuffer(b"".join(rows), ALTERNATIVE)
    ids = named["id"].astype(np.int32)
    after, raw = (np.ascontiguousarray(named[name]) for name in ("logprob", "raw_logprob"))
    columns: dict[str, Column] = {"slots": slots, "ids": ids}
    numbers = np.frombuffer(b"".join([each.data[: RECORD.itemsize] for each in chosen]), RECORD)
    for name in _OF_CHOICE:
        columns[name] = numbers[name].astype(COLUMNS[name].type)
    columns["source"] = np.array([SOURCES.index(token.source) for token in tokens], np.uint8)
    columns["sample"] = np.array([token.sample for token in tokens], np.uint16)
    columns["seconds"] = np.array([token.seconds for token in tokens], np.float64)
    columns["text_lengths"], columns["text"] = texts([token.text for token in tokens])

    sums, after_sums, scales = _of_slots(columns)
    with np.errstate(all="ignore"):
        logits = (raw + sums).astype(np.float32)
        left = ((after + after_sums) / scales).astype(np.float32)
    columns["logits"] = logits
    columns["changes"] = logits.view(np.uint32) ^ left.view(np.uint32)
    columns["odd_raw_at"], columns["odd_raw"] = _odd(raw, _logprobs(logits, 1.0, sums))
    columns["odd_after_at"], columns["odd_after"] = _odd(after, _logprobs(left, scales, after_sums))
    return columns | _pack_pieces(tokens, ids, columns["runner_up"])


def logprobs(columns: dict[str, Column]) -> tuple[Float64, Float64]:
    """Returns the log-probabilities of all slots: the model's own, and those after the stages."""
    sums, after_sums, scales = _of_slots(columns)
    logits = columns["logits"]
    left = (logits.view(np.uint32) ^ columns["changes"]).view(np.float32)
    raw, after = _logprobs(logits, 1.0, sums), _logprobs(left, scales, after_sums)
    raw[columns["odd_raw_at"]] = columns["odd_raw"]
    after[columns["odd_after_at"]] = columns["odd_after"]
    return raw, after


def unpack_tokens(columns: dict[str, Column]) -> list[Token]:
    """Returns the tokens of columns that were checked (`check_columns`)."""
    slots, ids = columns["slots"], columns["ids"].astype(np.int32)
    raw, after = logprobs(columns)
    pieces, data = _unpack_pieces(columns)
    sources, samples, seconds = (columns[name].tolist() for name in ("source", "sample", "seconds"))
    shown_texts = texts_back("text", columns["text_lengths"], columns["text"])
    ends = np.cumsum(slots, dtype=np.int64)
    # Checked here too: NumPy would repeat a column of one number for every token.
    rows = {
        len(shown_texts),
        *(len(columns[name]) for name, spec in COLUMNS.items() if spec.length == "records"),
    }
    if len(rows) > 1 or not ids.size == raw.size == after.size == (ends[-1] if len(ends) else 0):
        raise TraceError("its columns are not of the same length")
    firsts = ends - slots
    numbers = np.empty(len(slots), RECORD)
    numbers["id"], numbers["logprob"], numbers["raw_logprob"] = ids[firsts], after[firsts], raw[firsts]
    for name in _OF_CHOICE:
        numbers[name] = columns[name]
    written, alternatives = numbers.tobytes(), pack_alternatives(ids, after, raw)
    tokens = []
    for at, (first, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        record = written[RECORD.itemsize * at : RECORD.itemsize * (at + 1)]
        chosen = Chosen(
            record + alternatives[ALTERNATIVE.itemsize * (first + 1) : ALTERNATIVE.itemsize * end]
        )
        source = SOURCES[sources[at]]
        text = replace_surrogates(shown_texts[at])
        tokens.append(Token(chosen, text, data[chosen.id], pieces, source, seconds[at], samples[at]))
    return tokens


def _pack_pieces(tokens: Sequence[Token], ids: Column, runners_up: Column) -> dict[str, Column]:
    """Returns the columns with the text of every token that is named, so that a file needs no model to be
    shown."""
    named = np.unique(np.concatenate([ids, runners_up[runners_up >= 0]])).astype(np.int32)
    # In a fork of a run that was read from a file, the first tokens know only the pieces of that file; the
    # last one knows those of the model.
    piece = tokens[-1]._pieces if tokens else str
    shown = dict(zip(named.tolist(), map(piece, named.tolist()), strict=True))
    data = {token.id: token.bytes for token in tokens}
    # Most tokens are the bytes of their piece; parts of characters and control tokens are not.
    odd = sorted(token for token, token_bytes in data.items() if token_bytes != _encoded(shown[token]))
    columns: dict[str, Column] = {"piece_steps": np.diff(named, prepend=0).astype(np.uint32)}
    columns["piece_lengths"], columns["pieces"] = texts(list(shown.values()))
    columns["odd_bytes_ids"] = np.array(odd, np.int32)
    columns["odd_bytes_lengths"], columns["odd_bytes"] = blobs([data[token] for token in odd])
    return columns


def _unpack_pieces(columns: dict[str, Column]) -> tuple[Pieces, dict[int, bytes]]:
    ids = np.cumsum(columns["piece_steps"], dtype=np.int64).tolist()
    written = texts_back("pieces", columns["piece_lengths"], columns["pieces"])
    data = {token: _encoded(piece) for token, piece in zip(ids, written, strict=True)}
    odd = blobs_back("odd_bytes", columns["odd_bytes_lengths"], columns["odd_bytes"])
    data.update(zip(columns["odd_bytes_ids"].tolist(), odd, strict=True))
    shown = dict(zip(ids, map(replace_surrogates, written), strict=True))
    return lambda token: shown.get(token, f"<{token}>"), data


def _encoded(piece: str) -> bytes:
    return piece.encode("utf-8", "surrogatepass")


def _of_slots(columns: dict[str, Column]) -> tuple[Column, ...]:
    """Returns the numbers of each record that its log-probabilities are computed from, once per slot."""
    names = ("log_sum_exp", "log_sum_exp_after", "scale")
    return tuple(np.repeat(columns[name], columns["slots"]) for name in names)


def _logprobs(logits: Float32s, scale: Float64 | float, sums: Float64) -> Float64:
    """Returns the log-probabilities of these logits, as the decoder computes them."""
    with np.errstate(all="ignore"):
        return logits.astype(np.float64) * scale - sums


def _odd(wanted: Float64, computed: Float64) -> tuple[Column, Column]:
    """Returns the places where two arrays differ in any bit, and what is wanted there."""
    at = np.flatnonzero(wanted.view(np.uint64) != computed.view(np.uint64)).astype(np.uint32)
    return at, wanted[at]
