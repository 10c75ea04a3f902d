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
    byte_level: bool = True  # else pieces are plain text, with "▁" for a space, as SentencePiece writes them

    def build(self) -> PreTokenizer:
        from tokenizers import Regex, pre_tokenizers

        cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        if self.byte_level:
            cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(cuts)


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

# Words as DeepSeek's first models cut them: letters of scripts that have two cases, listed one by one.
_CASED_SCRIPTS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    r"ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"
    r"ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_HAN = r"[一-龥ࠀ-一가-퟿]+"
_HAN_AND_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_SYMBOL_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = WordRule((_THREE_DIGITS, _HAN_AND_KANA, rf"{_SYMBOL_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"))
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2_SPACES = "|".join(rf"\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
# Three digits at a time, counted from the last one.
_GROUPED_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
_AFMOE_SCRIPTS = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_YOUTU_SCRIPTS = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"


# Byte pairs are merged over whole lines, spaces included.
_LINES = WordRule((r"[^\n]+|[\n]+",), byte_level=False)


def _kimi() -> str:
    """Returns the rule of Kimi K2: as GPT-4o's, but words end where Chinese begins."""
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"[\p{{Han}}]+|{lead}{upper}*{lower}+{_CONTRACTION}?|{lead}{upper}+{lower}*{_CONTRACTION}?"
        rf"|{_THREE_DIGITS}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


# tokenizer.ggml.pre → rule.
GGUF_RULES: Mapping[str, WordRule] = {
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "gigachat", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion"), GPT2
    ),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "modern-bert"), GPT2),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code", "roberta-bpe", "granite-docling"), GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        _ONE_DIGIT,
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LLAMA3
    ),
    **dict.fromkeys(("lfm2", "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), WordRule(CL100K.patterns)),
    "glm5": WordRule(CL100K.patterns, ignore_merges=True),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "stablelm2", "hunyuan"), _QWEN2
    ),
    **dict.fromkeys(("solar-open", "grok-2"), _QWEN2),
    "laguna": WordRule((r"[^\n]+|[\n]+", *_QWEN2.patterns)),
    "ufakzeka": WordRule((_QWEN2.patterns[0].removeprefix(f"{_CONTRACTION}|"),)),
    "seed-coder": WordRule(
        (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    "jais-2": WordRule((_gpt4(_THREE_DIGITS).removesuffix(r"\s+(?!\S)|\s+") + _JAIS2_SPACES + r"|\s",)),
    "minicpm5": WordRule((_THREE_DIGITS, _gpt4(r"\p{N}+")), ignore_merges=True),
    "exaone-moe": WordRule(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}(?:(?! (?!\p{{L}}))[\p{{L}}\p{{M}} ])*|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "k2-horizon": WordRule((_gpt4(_THREE_DIGITS).replace(r"?\p{L}+", r"?[\p{L}\p{M}\u200C\u200D]+"),)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), WordRule((_BAILING,))),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), WordRule((_BLOOM,))),
    "viking": WordRule((_BLOOM, r"\p{N}")),
    "falcon": WordRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "chameleon": WordRule(
        (
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "deepseek-llm": WordRule(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_SCRIPTS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _HAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": WordRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": WordRule(
        (
            _THREE_DIGITS,
            _HAN_AND_KANA,
            rf"{_SYMBOL_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "afmoe": WordRule(
        (
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            _AFMOE_SCRIPTS,
            rf"{_SYMBOL_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
        )
    ),
    "superbpe": WordRule((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "youtu": WordRule((_YOUTU_SCRIPTS, _cased(r"\p{N}", f"{_CONTRACTION}?")), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), WordRule((_GROUPED_DIGITS, *O200K.patterns))),
    "granite-embed-multi-97m": WordRule(O200K.patterns, ignore_merges=True),
    "kimi-k2": WordRule((_kimi(),)),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m", "sarvam-moe"), _LINES),
    "qwen35": WordRule((_gpt4(r"\p{N}", word=r"[\p{L}\p{M}]"),)),
    "tekken": WordRule((_cased(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
}
