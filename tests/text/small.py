"""Small vocabularies made on the spot, in every form that we read: the same one for us and for an oracle."""

from __future__ import annotations

import inspect
import io
import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

# The patterns as the models' own tokenizer.json files have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = "<table>"


def corpus() -> list[str]:
    languages = """It's a don't we'll THEY'RE 1234567 ½ café naïve Straße привет мир שלום
    नमस्ते हिन्दी ไทย 日本語 中文 한국어
    🎈 👩‍👩‍👧 🏳️‍🌈 the quick brown fox jumps over the lazy dog HelloWorld snake_case   spaces\t\ttabs"""
    return (inspect.getsource(textwrap) + inspect.getsource(inspect)[:60_000] + languages * 20).splitlines(
        True
    )


def words(pre: str) -> pre_tokenizers.PreTokenizer:
    """How the original tokenizer.json of such a model cuts words."""
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = {"llama-bpe": LLAMA3, "qwen2": QWEN2, "qwen35": QWEN35}[pre]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@cache
def byte_level(pre: str) -> Tokenizer:
    """A byte-level BPE with the words of `pre`. It was trained on whole lines, so that its merges would cross
    words and join digits if the words let them; and some tokens have no merge, so that only `ignore_merges`
    leads to them."""
    state = json.loads(_trained_on_lines().to_str())
    state["model"]["merges"] = [pair for i, pair in enumerate(state["model"]["merges"]) if i % 40 != 39]
    state["model"]["ignore_merges"] = pre == "llama-bpe"
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = words(pre)
    return tokenizer


@cache
def _trained_on_lines() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    return tokenizer


def byte_level_metadata(pre: str) -> dict[str, Any]:
    """The same vocabulary as a GGUF file has it."""
    state = json.loads(byte_level(pre).to_str())
    vocab = byte_level(pre).get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [3 if token in SPECIAL else 4 if token == USER_DEFINED else 1 for token in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece_json(prepend: str) -> Tokenizer:
    """The vocabulary of `sentencepiece_model(True)` as Llama's tokenizer.json files have such: `prepend` is
    "normalizer" (the older way) or the prepend scheme of a Metaspace ("first", "always", "never")."""
    metadata = sentencepiece_metadata(True)
    tokens, scores, types = (metadata[f"tokenizer.ggml.{k}"] for k in ("tokens", "scores", "token_type"))
    vocab = {token: i for i, token in enumerate(tokens)}
    normal = [t for t, kind in zip(tokens, types, strict=True) if kind == 1]
    pairs = [(t[:i], t[i:]) for t in normal for i in range(len(t) - 1, 0, -1) if {t[:i], t[i:]} <= {*normal}]
    pairs.sort(key=lambda pair: -scores[vocab["".join(pair)]])
    tokenizer = Tokenizer(models.BPE(vocab, pairs, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = decoders.Replace("▁", " ")
    if prepend == "normalizer":
        replace = normalizers.Replace(" ", "▁")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend, split=False)
    after = [] if prepend == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *after])
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """A folder as a model repository has it, for us and for `transformers`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def sentencepiece_model(
    prefix: bool, user_defined: tuple[str, ...] = ()
) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE of a few letters, where ties and odd merges are the rule."""
    out = io.BytesIO()
    lines = [f"{a}{b} {b}{a}{c}{a} {c}{c}a{b}  {a}{a}" for a in WORDS for b in WORDS for c in "abn"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines + corpus()[:400]),
        model_writer=out,
        vocab_size=700,
        hard_vocab_limit=False,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_by_whitespace=prefix,
        normalization_rule_name="identity",
        user_defined_symbols=list(user_defined),
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


WORDS = ("a", "b", "ab", "ban", "anna", "nan", "bb", "aba")


def sentencepiece_metadata(prefix: bool, user_defined: tuple[str, ...] = ()) -> dict[str, Any]:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(sentencepiece_model(prefix, user_defined).serialized_model_proto())
    return {
        "tokenizer.ggml.model": "llama",
        # As converters write them: the spaces of user-defined pieces are real ones.
        "tokenizer.ggml.tokens": [
            p.piece.replace("▁", " ") if p.type == 4 else p.piece for p in model.pieces
        ],
        "tokenizer.ggml.scores": [p.score for p in model.pieces],
        "tokenizer.ggml.token_type": [p.type for p in model.pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
