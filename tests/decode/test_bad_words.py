"""Bad words: the tokens that would complete one, after any text, on any branch."""

from __future__ import annotations

from decode.naive import banned
from decode.words import EOS, WORDS, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from glassloop import Sampling
from glassloop.decode.bad_words import BadWords
from glassloop.decode.decoder import Decoder
from glassloop.decode.token_bytes import token_bytes

LIVELY = [ord("a"), ord("b"), 0xC3, 0xA9, *range(256, EOS)]  # all that the words are made of
TOKENS = st.lists(st.sampled_from(LIVELY), max_size=12)
BAD = st.lists(
    st.one_of(
        st.text("abé", min_size=1, max_size=7),
        st.lists(st.sampled_from(LIVELY[:8]), min_size=1, max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


@given(BAD, TOKENS, TOKENS)
def test_the_tokens_that_would_complete_a_bad_word_are_banned(words, prompt, generated):
    by_id = token_bytes(tokenizer()).by_id
    watch = BadWords(words, tokenizer()).watch(prompt)
    for place in range(len(generated) + 1):
        expected = banned(words, prompt + generated[:place], by_id)
        assert set(watch.banned().tolist()) == expected
        if place < len(generated):
            watch.commit(generated[place])


@given(BAD, TOKENS, st.lists(st.sampled_from([*LIVELY, "fork", "back"]), max_size=30), st.integers(0, 99))
def test_a_branch_knows_its_own_text_after_forks_and_rewinds(words, prompt, moves, choice):
    """What a decoder bans is a function of its history, however it got there."""
    by_id = token_bytes(tokenizer()).by_id
    size = tokenizer().vocab_size
    decoders = [Decoder(Sampling(bad_words=words), size, 0, prompt, tokenizer=tokenizer())]
    for move in moves:
        decoder = decoders[choice % len(decoders)]
        if move == "fork":
            decoders.append(decoder.fork())
        elif move == "back":
            decoder.rewind(decoder.history.generated_length // 2)
        else:
            decoder.commit(move)
    for decoder in decoders:
        expected = banned(words, decoder.history.tokens.tolist(), by_id)
        assert set(decoder.step.bad_words.banned().tolist()) == expected


def test_a_bad_word_may_be_as_long_as_the_text():
    x = ord("x")
    words = BadWords(["x" * 20_000, "ab"], tokenizer())
    watch = words.watch([x] * 30_000)
    assert x in watch.banned()
    watch.commit(ord("a"))
    assert x not in watch.banned() and ord("b") in watch.banned()


def test_a_text_is_followed_and_never_read_again(monkeypatch):
    """Counted, not timed: a step looks at the bytes of its token and at nothing that came before."""
    words = BadWords(["x" * 5000 + "y", *WORDS], tokenizer())
    watch, seen = words.watch([ord("x")] * 4000), []
    inner = type(words._texts).follow

    def counted(automaton, state, symbols):
        seen.append(len(symbols))
        return inner(automaton, state, symbols)

    monkeypatch.setattr(type(words._texts), "follow", counted)
    for _ in range(50):
        watch.commit(ord("x"))
        watch.banned()
    assert seen == [1] * 50


def test_what_is_remembered_is_bounded():
    words = BadWords([a + b + c for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh"], tokenizer())
    words._room = 100
    watch = words.watch([])
    for _ in range(3):
        for letter in b"abcdefgh":
            watch.commit(letter)
            assert set(watch.banned().tolist()) >= set(b"abcdefgh") or len(watch._states) < 6
    assert sum(map(len, words._known.values())) < 1 << 21


def test_a_prompt_may_have_ids_that_the_tokenizer_does_not_know():
    watch = BadWords(["ab"], tokenizer()).watch([ord("a"), EOS + 500])
    assert ord("b") in watch.banned()
