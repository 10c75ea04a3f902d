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

PLAIN = [ord("a"), ord("b"), *(256 + place for place, word in enumerate(WORDS) if word.isascii())]
TOKEN = st.one_of(
    st.sampled_from(PLAIN[:4]), st.sampled_from(PLAIN), st.sampled_from([0xC3, 0xA9, *range(256, EOS)])
)
TOKENS = st.lists(TOKEN, max_size=12)
TEXT = st.one_of(st.text("ab", min_size=2, max_size=5), st.text("abé", min_size=1, max_size=7))
SEQUENCE = st.lists(st.sampled_from(PLAIN[:4]), min_size=1, max_size=4).map(tuple)
BAD = st.lists(TEXT, min_size=1, max_size=6) | st.lists(TEXT | SEQUENCE, min_size=1, max_size=6)
MOVE = st.one_of(TOKEN, TOKEN, st.just("fork"), st.just("back"))


@given(BAD, TOKENS, TOKENS)
def test_the_tokens_that_would_complete_a_bad_word_are_banned(words, prompt, generated):
    by_id = token_bytes(tokenizer()).by_id
    watch = BadWords(words, tokenizer()).watch(prompt)
    for place in range(len(generated) + 1):
        expected = banned(words, prompt + generated[:place], by_id)
        assert set(watch.banned().tolist()) == expected
        if place < len(generated):
            watch.commit(generated[place])


@given(BAD, TOKENS, st.lists(st.tuples(MOVE, st.integers(0, 3)), min_size=4, max_size=16))
def test_a_branch_knows_its_own_text_after_forks_and_rewinds(words, prompt, moves):
    """What a decoder bans is a function of its history, however it got there."""
    by_id = token_bytes(tokenizer()).by_id
    size = tokenizer().vocab_size
    decoders = [Decoder(Sampling(bad_words=words), size, 0, prompt, tokenizer=tokenizer())]
    for move, number in moves:
        decoder = decoders[number % len(decoders)]
        if move == "fork":
            decoders.append(decoder.fork())
        elif move == "back":
            decoder.rewind(decoder.history.generated_length // 2)
        else:
            decoder.commit(move)
        for each in decoders:
            expected = banned(words, each.history.tokens.tolist(), by_id)
            assert set(each.step.bad_words.banned().tolist()) == expected


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


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("glassloop.decode.bad_words._MOST_KNOWN", 100)
    letters = "abcdefgh"
    words = BadWords([a + b + c for a in letters for b in letters for c in letters], tokenizer())
    watch = words.watch([])
    for place in range(200):
        watch.commit(ord(letters[place * place % 8]))
        assert place < 1 or set(watch.banned().tolist()) >= set(letters.encode())
        assert sum(map(len, words._known.values())) <= 200


def test_a_prompt_may_have_ids_that_the_tokenizer_does_not_know():
    watch = BadWords(["ab"], tokenizer()).watch([ord("a"), EOS + 500])
    assert ord("b") in watch.banned()
