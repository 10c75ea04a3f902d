"""The rules that cut text into words before byte-level BPE, by the names that GGUF and tiktoken give them.

Each rule is data: patterns that run one after the other, where every match and every gap is a word, and two
settings. Byte pairs are merged inside a word, never across two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer


class WordRule(NamedTuple):
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is in the vocabulary is that token, however it would merge
    add_bos: bool = False  # if the file does not say

    def build(self) -> PreTokenizer:
        from tokenizers import Regex, pre_tokenizers

        cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        return pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str, word: str = r"\p{L}", newlines: str = r"\r\n") -> str:
    symbols = r"[^\s\p{L}\p{M}\p{N}]" if "M" in word else r"[^\s\p{L}\p{N}]"
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{word}+|{digits}| ?{symbols}+[{newlines}]*|{_SPACES}"


def _cased(digits: str, contraction: str) -> str:
    # Words split where upper case follows lower case: "HelloWorld" is two.
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_THREE_DIGITS = r"\p{N}{1,3}"
GPT2 = WordRule((_GPT2,))
CL100K = WordRule((_gpt4(_THREE_DIGITS),), ignore_merges=True)
O200K = WordRule((_cased(_THREE_DIGITS, f"{_CONTRACTION}?"),), ignore_merges=True)

_LLAMA3 = WordRule(CL100K.patterns, ignore_merges=True, add_bos=True)
_QWEN2 = WordRule((_gpt4(r"\p{N}"),))
_ONE_DIGIT = WordRule((r"\p{N}", _GPT2))
_GPT4O = WordRule(O200K.patterns)

# tokenizer.ggml.pre → rule.
GGUF_RULES: Mapping[str, WordRule] = {
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "gigachat", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion"), GPT2
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _ONE_DIGIT
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LLAMA3
    ),
    **dict.fromkeys(("lfm2", "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), WordRule(CL100K.patterns)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "stablelm2", "hunyuan"), _QWEN2
    ),
    "qwen35": WordRule((_gpt4(r"\p{N}", word=r"[\p{L}\p{M}]"),)),
    "tekken": WordRule((_cased(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
}
