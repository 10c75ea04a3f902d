"""Strings that make tokenizers differ: what the property tests of this folder are fed with."""

from __future__ import annotations

from hypothesis import strategies as st

_CHARACTERS = st.characters(exclude_categories=["Cs"])
_WORDS = """Hello world the The THE HelloWorld helloWORLD a don't DON'T we'll I'M they've they'Re it'ſ
    's 'x '' ` def f(x): return x**2 // 3 ==> != <= ... --- ___ ### $ € ~ ^ | \\ / a/b // http://x.y/z?q=1&r=2#s
    naïve café Straße ﬁne ǅ ʼn ŉ İstanbul ΣΑΣ привет שלום مرحبا ۱۲۳ ١٢٣ नमस्ते हिन्दी ไทย ខ្មែរ
    日本語 中文 한국어 ㈱ ½ Ⅷ ² ① 🎈 👩‍👩‍👧 🏳️‍🌈 🇫🇷 é e\u0301 ä a\u0308\u0323 \u200d \u200b \ufeff
    ▁ ▁▁ Ġ Ċ ÃÂ <0x0A> <0xE2> �
    <bos> <eos> <unk> <pad> <s> </s> <|endoftext|> <|im_start|> <|im_end|> <start_of_turn> <end_of_turn>
    <|fim_prefix|> <table> </td> <unused7> [multimodal] <b> </b>"""
_FRAGMENTS = st.sampled_from(_WORDS.split())
_DIGITS = st.text("0123456789", min_size=1, max_size=9)
_SPACES = st.one_of(
    st.sampled_from([" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r", " \n", "\n ", "    ", "\t\t"]),
    st.text(" \n", min_size=1, max_size=40),
    st.text(" \n\t\r\v\f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\x1c\x1f", min_size=1, max_size=6),
)
_RUNS = st.builds(lambda c, n: c * n, st.sampled_from("aAe =-_.,'ab日\U0001f388\n"), st.integers(1, 70))
_FEW_LETTERS = (
    st.text("ab", max_size=12) | st.text("thein ", max_size=16) | st.text("sSdDmMtTlLvVrReE'' ", max_size=8)
)

TEXTS = st.lists(
    st.one_of(
        _FRAGMENTS,
        _FRAGMENTS,
        _SPACES,
        _SPACES,
        _DIGITS,
        _RUNS,
        _FEW_LETTERS,
        st.text(_CHARACTERS, max_size=6),
    ),
    max_size=10,
).map("".join)

BYTES = st.one_of(
    st.binary(max_size=24),
    st.lists(st.one_of(st.binary(max_size=4), TEXTS.map(str.encode)), max_size=4).map(b"".join),
)
