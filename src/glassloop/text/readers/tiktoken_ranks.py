"""Reads a tokenizer from a tiktoken rank file: a line for each token, with its bytes in base64 and its rank.

The file does not say how text is cut into words, nor which tokens are special; the encoding's name does.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from glassloop.errors import TextError
from glassloop.text.alphabet import BYTE_CHARACTERS, to_alphabet
from glassloop.text.bpe import BPE, Pair
from glassloop.text.merges import LONGEST_PIECE, many_small_objects, merges_from_order
from glassloop.text.pipeline import TokenizerParts
from glassloop.text.pretokenizers import CL100K, GPT2, O200K, WordRule
from glassloop.text.vocabulary import Spelling, TokenKind, Vocabulary
from glassloop.util.files import read_at_most

_MOST_RANKS = 4_000_000
_MOST_BYTES = 256_000_000
_END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Encoding:
    words: WordRule
    special: Mapping[str, int]


_GPT2_WORDS = WordRule(GPT2.patterns, ignore_merges=True)
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_CL100K_SPECIAL = {
    _END: 100257,
    **dict(zip(_FIM, range(100258, 100261), strict=True)),
    "<|endofprompt|>": 100276,
}
ENCODINGS: Mapping[str, Encoding] = {
    "gpt2": Encoding(_GPT2_WORDS, {_END: 50256}),
    "r50k_base": Encoding(_GPT2_WORDS, {_END: 50256}),
    "p50k_base": Encoding(_GPT2_WORDS, {_END: 50256}),
    "p50k_edit": Encoding(_GPT2_WORDS, {_END: 50256, **dict(zip(_FIM, range(50281, 50284), strict=True))}),
    "cl100k_base": Encoding(CL100K, _CL100K_SPECIAL),
    "o200k_base": Encoding(O200K, {_END: 199999, "<|endofprompt|>": 200018}),
}


def read_tiktoken(path: Path, name: str) -> TokenizerParts:
    encoding = ENCODINGS.get(name)
    if encoding is None:
        raise TextError(f"{path}: {name!r} is not a known encoding; known are {', '.join(ENCODINGS)}")
    with many_small_objects():
        ranks = _read_ranks(path)
        taken = set(encoding.special.values())
        pieces: list[str | None] = [None] * (max([*ranks, *taken]) + 1)
        for rank, piece in ranks.items():
            if rank in taken:
                raise TextError(f"{path}: rank {rank} is the id of a special token of {name}")
            pieces[rank] = piece
        # Ranks are ids, so they run from 0 without a gap, except for ids of special tokens.
        for rank in range(max(ranks) + 1):
            if pieces[rank] is None and rank not in taken:
                raise TextError(f"{path}: no token has rank {rank}, though others go up to {max(ranks)}")
        order = [ranks[rank] for rank in sorted(ranks)]
        vocab = {piece: rank for rank, piece in ranks.items()}
        for byte, character in enumerate(BYTE_CHARACTERS):
            if character not in vocab:
                raise TextError(f"{path}: no token for the byte 0x{byte:02X}")
        kinds = [TokenKind.NORMAL] * len(pieces)
        for text, token_id in encoding.special.items():
            pieces[token_id], kinds[token_id] = text, TokenKind.CONTROL
            vocab[text] = token_id
        vocabulary = Vocabulary(name, pieces, kinds, Spelling.BYTE_LEVEL)

    def merges(pieces: Collection[str] | None) -> list[Pair]:
        return merges_from_order(order if pieces is None else [piece for piece in order if piece in pieces])

    model = BPE(
        vocabulary,
        vocab,
        merges,
        words=encoding.words.build(),
        ignore_merges=True,
    )
    return TokenizerParts(vocabulary, model, eos_ids=(encoding.special[_END],))


def _read_ranks(path: Path) -> dict[int, str]:
    """Returns rank → piece, spelled in the byte-level alphabet."""
    lines = read_at_most(path, _MOST_BYTES, TextError).splitlines()
    ranks: dict[int, str] = {}
    tokens: set[bytes] = set()
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        encoded, _, rank_text = line.partition(b" ")
        try:
            token = a2b_base64(encoded, strict_mode=True)
        except Base64Error:
            raise TextError(f"{path}: line {number}: {_shown(encoded)} is not base64") from None
        if not rank_text.isdigit() or len(rank_text) > 7 or (rank := int(rank_text)) >= _MOST_RANKS:
            raise TextError(f"{path}: line {number}: {_shown(rank_text)} is not a rank")
        if not 0 < len(token) <= LONGEST_PIECE:
            raise TextError(
                f"{path}: line {number}: a token of {len(token)} bytes; 1 to {LONGEST_PIECE} are expected"
            )
        if rank in ranks or token in tokens:
            raise TextError(
                f"{path}: line {number}: the {'rank' if rank in ranks else 'token'} appears twice"
            )
        ranks[rank] = to_alphabet(token)
        tokens.add(token)
    if not ranks:
        raise TextError(f"{path}: holds no ranks")
    return ranks


def _shown(field: bytes) -> str:
    return ascii(field[:40].decode("latin-1"))
