"""The records of many tokens as columns, and back: small, and the same to the last bit.

A log-probability is a float64, but it was made as `logit - log_sum_exp` from a logit of 32 bits, and after
the stages as `logit · scale - log_sum_exp_after`. So the 32 bits are kept, and of those after the stages only
how they differ from those before, which is mostly nothing. Every number is made again before it is trusted;
one that would not come back exactly (it is rare) is kept whole beside the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.chosen import ALTERNATIVE, RECORD, Chosen, pack_alternatives
from glassloop.errors import TraceError
from glassloop.ops.rows import Float64
from glassloop.trace.columns import Column, blobs, blobs_back, texts, texts_back
from glassloop.trace.token import Pieces, Source, Token
from glassloop.trace.validate import replace_surrogates

SOURCES: tuple[Source, ...] = ("sampled", "forced", "draft", "beam")
_PLAIN = {  # of a Chosen, as they are; -1 for none
    "rank": np.uint32,
    "rank_after": np.uint32,
    "entropy": np.float64,
    "log_sum_exp": np.float64,
    "log_sum_exp_after": np.float64,
    "scale": np.float64,
    "luck": np.float64,
    "margin": np.float64,
    "runner_up": np.int32,
    "survivors": np.int32,
}
# Every column by how many numbers it has: one a record, one a slot, or as many as another column.
PER_RECORD = {
    "slots": "u1",
    **{name: f"{np.dtype(kind).kind}{np.dtype(kind).itemsize}" for name, kind in _PLAIN.items()},
    "source": "u1",
    "sample": "u2",
    "seconds": "f8",
    "text_lengths": "u4",
}
PER_SLOT = {"ids": "i4", "logits": "f4", "changes": "u4"}
OTHERS = {
    "odd_raw_at": "u4",
    "odd_raw": "f8",
    "odd_after_at": "u4",
    "odd_after": "f8",
    "piece_steps": "u4",
    "piece_lengths": "u4",
    "odd_bytes_ids": "i4",
    "odd_bytes_lengths": "u4",
    "text": "u1",
    "pieces": "u1",
    "odd_bytes": "u1",
}
Float32s = NDArray[np.float32]


def pack_tokens(tokens: Sequence[Token]) -> dict[str, Column]:
    """In a row of slots each token has itself first and then its alternatives."""
    chosen = [token.chosen for token in tokens]
    slots = np.array([1 + len(each.packed_alternatives) // ALTERNATIVE.itemsize for each in chosen], np.uint8)
    # What is written of a token begins as what is told of an alternative.
    rows = [each.data[: ALTERNATIVE.itemsize] + each.packed_alternatives for each in chosen]
    named = np.frombuffer(b"".join(rows), ALTERNATIVE)
    ids = named["id"].astype(np.int32)
    after, raw = (np.ascontiguousarray(named[name]) for name in ("logprob", "raw_logprob"))
    columns: dict[str, Column] = {"slots": slots, "ids": ids}
    numbers = np.frombuffer(b"".join([each.data[: RECORD.itemsize] for each in chosen]), RECORD)
    for name, kind in _PLAIN.items():
        columns[name] = numbers[name].astype(kind)
    columns["source"] = np.array([SOURCES.index(token.source) for token in tokens], np.uint8)
    columns["sample"] = np.array([token.sample for token in tokens], np.uint16)
    columns["seconds"] = np.array([token.seconds for token in tokens], np.float64)
    columns["text_lengths"], columns["text"] = texts([token.text for token in tokens])

    sums, after_sums, scales = (
        np.repeat(columns[name], slots) for name in ("log_sum_exp", "log_sum_exp_after", "scale")
    )
    with np.errstate(all="ignore"):
        logits = (raw + sums).astype(np.float32)
        left = ((after + after_sums) / scales).astype(np.float32)
    columns["logits"] = logits
    columns["changes"] = logits.view(np.uint32) ^ left.view(np.uint32)
    columns["odd_raw_at"], columns["odd_raw"] = _odd(raw, _made(logits, 1.0, sums))
    columns["odd_after_at"], columns["odd_after"] = _odd(after, _made(left, scales, after_sums))
    return columns | _pack_pieces(tokens, ids, columns["runner_up"])


def logprobs(columns: dict[str, Column]) -> tuple[Float64, Float64]:
    """The log-probabilities of all slots: the model's own, and those after the stages."""
    sums, after_sums, scales = (
        np.repeat(columns[name], columns["slots"]) for name in ("log_sum_exp", "log_sum_exp_after", "scale")
    )
    logits = columns["logits"]
    left = (logits.view(np.uint32) ^ columns["changes"]).view(np.float32)
    raw, after = _made(logits, 1.0, sums), _made(left, scales, after_sums)
    raw[columns["odd_raw_at"]] = columns["odd_raw"]
    after[columns["odd_after_at"]] = columns["odd_after"]
    return raw, after


def unpack_tokens(columns: dict[str, Column]) -> list[Token]:
    """Tokens from columns that were checked (`check_columns`)."""
    slots, ids = columns["slots"], columns["ids"].astype(np.int32)
    raw, after = logprobs(columns)
    pieces, data = _unpack_pieces(columns)
    sources, samples, seconds = (columns[name].tolist() for name in ("source", "sample", "seconds"))
    seen = texts_back("text", columns["text_lengths"], columns["text"])
    ends = np.cumsum(slots, dtype=np.int64)
    each = [columns[name] for name in (*_PLAIN, "source", "sample", "seconds")]
    rows = {len(slots), len(seen), *map(len, each)}
    if len(rows) > 1 or not ids.size == raw.size == after.size == (ends[-1] if len(ends) else 0):
        raise TraceError("its columns are not of the same length")
    firsts = ends - slots
    numbers = np.empty(len(slots), RECORD)
    numbers["id"], numbers["logprob"], numbers["raw_logprob"] = ids[firsts], after[firsts], raw[firsts]
    for name in _PLAIN:
        numbers[name] = columns[name]
    written, told = numbers.tobytes(), pack_alternatives(ids, after, raw)
    tokens = []
    for at, (first, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        own = written[RECORD.itemsize * at : RECORD.itemsize * (at + 1)]
        chosen = Chosen(own + told[ALTERNATIVE.itemsize * (first + 1) : ALTERNATIVE.itemsize * end])
        source = SOURCES[sources[at]]
        text = replace_surrogates(seen[at])
        tokens.append(Token(chosen, text, data[chosen.id], pieces, source, seconds[at], samples[at]))
    return tokens


def _pack_pieces(tokens: Sequence[Token], ids: Column, runners_up: Column) -> dict[str, Column]:
    """What every token that is named anywhere looks like, so that a file can be read without its model."""
    named = np.unique(np.concatenate([ids, runners_up[runners_up >= 0]])).astype(np.int32)
    piece = tokens[0]._pieces if tokens else str
    shown = dict(zip(named.tolist(), map(piece, named.tolist()), strict=True))
    data = {token.id: token.bytes for token in tokens}
    # Most tokens are the bytes of their piece; not so parts of characters, and tokens that are no text.
    odd = sorted(token for token, own in data.items() if own != _encoded(shown[token]))
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


def _made(logits: Float32s, scale: Float64 | float, sums: Float64) -> Float64:
    """The log-probabilities that come of these logits, as the decoder computes them."""
    with np.errstate(all="ignore"):
        return logits.astype(np.float64) * scale - sums


def _odd(wanted: Float64, made: Float64) -> tuple[Column, Column]:
    """Where two arrays are not the same bit for bit, and what it should be."""
    at = np.flatnonzero(wanted.view(np.uint64) != made.view(np.uint64)).astype(np.uint32)
    return at, wanted[at]
