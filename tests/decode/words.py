"""A tokenizer of single bytes and a few short words: small, and its tokens overlap in every way."""

from __future__ import annotations

from functools import cache

from glassloop.text.alphabet import to_alphabet
from glassloop.text.tokenizer import Tokenizer

WORDS = ["ab", "ba", "aa", "bb", "aba", "abb", "bab", "aab", "baab", "abab", "aéb", "éé", "bé"]
EOS = 256 + len(WORDS)


@cache
def tokenizer() -> Tokenizer:
    tokens = [to_alphabet(bytes([byte])) for byte in range(256)]
    tokens += [to_alphabet(word.encode()) for word in WORDS] + ["<end>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * EOS + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": EOS,
        }
    )
