"""What the text must be: masks that let through exactly the tokens that fit, and errors that come soon."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from waiting import quickest

from glassloop import Sampling, SamplingError
from glassloop.decode.decoder import Decoder
from glassloop.decode.grammar import Grammar, _Budget, _compiler
from glassloop.decode.partial_json import partial_json
from glassloop.model.loader import load_tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("smollm2-135m-instruct")


def write(tokenizer, seed=0, limit=80, **options):
    """A text from random logits: only the grammar gives it a form."""
    size = tokenizer.vocab_size
    sampling = Sampling(**options)
    decoder = Decoder(sampling, size, seed, [1], tokenizer=tokenizer, eos_ids=tuple(tokenizer.eos_ids))
    random = np.random.default_rng(seed)
    # The end is made likely, and characters that go on and on are not: the texts stay short.
    likely = [*tokenizer.eos_ids, tokenizer.id_of("}"), tokenizer.id_of('"'), tokenizer.id_of('"}')]
    made = []
    for _ in range(limit):
        logits = random.normal(0, 1, size).astype(np.float32)
        logits[[token for token in likely if token is not None]] += 9
        token = decoder.choose(logits).id
        if token in tokenizer.eos_ids:
            return tokenizer.decode(made), True
        decoder.commit(token)
        made.append(token)
    return tokenizer.decode(made), False


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"regex": r"[a-c]{2,5}-\d+"}, lambda text: re.fullmatch(r"[a-c]{2,5}-\d+", text)),
        ({"choice": ["yes", "no", 'don\'t "know" ✓\n']}, lambda t: t in ("yes", "no", 'don\'t "know" ✓\n')),
        ({"grammar": 'start: "<" (A | B)+ ">"\nA: "é"\nB: /[0-9]/'}, lambda t: re.fullmatch("<[é0-9]+>", t)),
        (
            {"json_schema": PERSON, "top_k": 40, "temperature": 1.5, "repetition_penalty": 1.2},
            lambda text: set(json.loads(text)) == {"name", "age"} and type(json.loads(text)["age"]) is int,
        ),
    ],
    ids=["regex", "choice", "grammar", "schema"],
)
def test_a_finished_text_has_the_form(tokenizer, options, fits, seed):
    text, finished = write(tokenizer, seed, **options)
    assert finished or "choice" not in options
    if finished:
        assert fits(text), text
    elif "json_schema" in options:
        assert isinstance(partial_json(text), dict | None)


def test_any_json_object(tokenizer):
    for seed in range(3):
        text, finished = write(tokenizer, seed, json_schema={"type": "object"}, limit=40)
        value = json.loads(text) if finished else partial_json(text)
        assert value is None or isinstance(value, dict)


def test_the_end_is_allowed_exactly_where_the_text_is_complete(tokenizer):
    sampling = Sampling(regex="ab(cd)*")
    for text, complete in [("", False), ("a", False), ("ab", True), ("abc", False), ("abcd", True)]:
        decoder = Decoder(sampling, tokenizer.vocab_size, 0, [1], tokenizer=tokenizer)
        for token in tokenizer.encode(text, add_special=False):
            decoder.commit(token)
        mask = decoder.step.grammar.mask()
        assert all(mask[token] == complete for token in tokenizer.eos_ids)
        allowed = {tokenizer.token_bytes(int(i)) for i in np.flatnonzero(mask)}
        special = {tokenizer.token_bytes(i) for i in tokenizer.special_ids}
        rest = "ab" + "cd" * 20
        assert all(rest.encode()[len(text) :].startswith(data) for data in allowed - special)
        assert (
            not {tokenizer.token_bytes(i) for i in tokenizer.special_ids - set(tokenizer.eos_ids)} & allowed
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"json_schema": {"type": "objekt"}}, "json_schema cannot be used: Invalid type: objekt"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "json_schema .*Unsatisfiable"),
        ({"regex": "(a"}, "regex cannot be used: .*unclosed group"),
        ({"grammar": "start: foo"}, "grammar cannot be used: .*foo"),
        ({"grammar": "\0"}, r"grammar cannot be used: .*\\x00"),
        ({"grammar": "start: start"}, "grammar cannot be used: no token can satisfy it"),
    ],
)
def test_what_does_not_compile_or_fit_any_token_is_an_error(tokenizer, options, said):
    with pytest.raises(SamplingError, match=said):
        write(tokenizer, **options)


def test_a_schema_too_deep_is_an_error(tokenizer):
    schema: dict = {}
    for _ in range(300):
        schema = {"properties": {"a": schema}}
    with pytest.raises(SamplingError, match="levels deep"):
        write(tokenizer, json_schema=schema)


@pytest.mark.parametrize(
    "bomb", ["(x{1000}){1000}", "((a{0,900}){0,900}){0,900}", "(a|aa)+$", "(.*){50}b.{400}"]
)
def test_a_bomb_is_an_error_or_bounded(tokenizer, bomb):
    """It ends, and soon: with text, or with an error that names the field."""
    write(tokenizer, regex="a", limit=1)  # what is made once for a tokenizer is not counted

    def explode() -> None:
        compiler = _compiler(tokenizer)
        for source in list(compiler._cache):
            compiler._forget(source)
        try:
            write(tokenizer, regex=bomb, limit=12)
        except SamplingError as error:
            assert "regex" in str(error)

    assert quickest(explode, enough=2) < 2


def test_a_grammar_at_odds_with_other_stages_is_an_error_that_names_them(tokenizer):
    with pytest.raises(SamplingError, match="allowed_tokens and grammar are at odds") as raised:
        write(tokenizer, regex="abc", allowed_token_ids=[tokenizer.id_of("x")])
    assert raised.value.field == "regex"
    with pytest.raises(SamplingError, match="min_tokens and grammar are at odds") as raised:
        write(tokenizer, choice=["a"], min_tokens=5)
    assert raised.value.field == "choice"


def test_without_a_tokenizer_a_grammar_is_an_error():
    with pytest.raises(SamplingError, match="regex needs a tokenizer"):
        Decoder(Sampling(regex="a"), 10, 0)


def test_one_time_that_is_counted_wrongly_ends_no_request_and_two_do():
    budget = _Budget()
    for seconds in (0.001, 30.0, 0.001, 0.2):
        budget.spend("regex", seconds, 0.0)
    with pytest.raises(SamplingError, match="regex cannot be used: it takes too long to follow"):
        budget.spend("regex", 0.2, 0.0)


# ── bad words ──────────────────────────────────────────────────────────────────────────────────────────────


def test_bad_words_never_come_however_they_fall_into_tokens(tokenizer):
    """Letters at random, all of a b c: the words would come at once."""
    letters = [i for i in range(tokenizer.vocab_size) if set(tokenizer.token_bytes(i)) <= set(b"abc ")]
    words = ["aa", "abc", "c b", "bb"]
    logits = np.full(tokenizer.vocab_size, -np.inf, np.float32)
    logits[letters] = 0.0
    for seed in range(3):
        decoder = Decoder(Sampling(bad_words=words), tokenizer.vocab_size, seed, [1], tokenizer=tokenizer)
        made = []
        for _ in range(60):
            made.append(decoder.choose(logits).id)
            decoder.commit(made[-1])
        text = tokenizer.decode(made)
        assert len(text) > 60 and not any(word in text for word in words)


def test_the_tokens_that_hold_a_text_are_found(tokenizer):
    from glassloop.decode.token_bytes import token_bytes

    known = token_bytes(tokenizer)
    for text in (b"a", b"qu", b"ing", b" the", b"\xc3", b"\xff", b"a\xff", b"zzzz"):
        assert known.holding([text]) == {i for i, data in enumerate(known.by_id) if text in data}
        low, high = known.range_of(text)
        assert set(known.sorted_ids[low:high]) == {
            i for i, data in enumerate(known.by_id) if data.startswith(text)
        }


def test_many_texts_are_looked_for_at_once(tokenizer):
    """Of ten thousand, pieces of tokens and others that are none: the same tokens as one by one."""
    from glassloop.decode.token_bytes import token_bytes

    known = token_bytes(tokenizer)
    random = np.random.default_rng(4)
    texts = [bytes(random.integers(97, 123, random.integers(3, 9)).tolist()) for _ in range(9_000)]
    texts += [data[len(data) // 3 :] for data in known.by_id[5_000:6_000]]
    some = [text for text in set(texts) if text][::50]
    expected = {i for i, data in enumerate(known.by_id) if any(text in data for text in some)}
    assert known.holding(some) == expected
    searched = [text for text in texts if text]
    found = []
    assert quickest(lambda: found.append(known.holding(searched)), enough=1) < 1
    assert found[0] >= expected


def test_a_bad_word_begun_by_the_prompt_is_not_completed(tokenizer):
    prompt = tokenizer.encode("The cat sat on the ma")
    logits = np.zeros(tokenizer.vocab_size, np.float32)
    logits[tokenizer.id_of("t")] = 50.0
    for words, banned in ((["mat"], True), (["moat"], False)):
        decoder = Decoder(Sampling(bad_words=words), len(logits), 0, prompt, tokenizer=tokenizer)
        assert (decoder.choose(logits).id != tokenizer.id_of("t")) == banned


def test_equal_requests_share_the_compiled_grammar_and_nothing_else(tokenizer):
    sampling = Sampling(choice=["true", "false"])
    one, other = (Grammar(sampling, tokenizer.vocab_size, tokenizer) for _ in range(2))
    at_first = other.mask()
    one.commit(tokenizer.id_of("t"))
    assert (other.mask() == at_first).all() and (one.mask() != at_first).any()
    assert (Grammar(sampling, tokenizer.vocab_size, tokenizer).mask() == at_first).all()


# ── GBNF ───────────────────────────────────────────────────────────────────────────────────────────────────

JSON_IN_GBNF = r"""
# any JSON object
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def matches(tokenizer, grammar, text):
    state = Grammar(Sampling(grammar=grammar), tokenizer.vocab_size, tokenizer)
    for token in [*tokenizer.encode(text, add_special=False), tokenizer.eos_ids[0]]:
        if not state.mask()[token]:
            return False
        state.commit(token)
    return True


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["maybe", "yesno", ""]),
        ('root ::= item+\nitem ::= "- " [a-z]+ "\\n"', ["- a\n", "- ab\n- c\n"], ["- a", "- A\n", ""]),
        ('root ::= "a"{2,3} (b "c")*\nb ::= [^a]', ["aa", "aaabc", "aaxczc"], ["a", "aaaa", "aaac"]),
        (JSON_IN_GBNF, ['{"a": [1, -2.5, "x\\n"], "b": {}}', "{}"], ['{"a": 1', "[1]", "{a: 1}"]),
    ],
)
def test_a_grammar_may_be_in_gbnf(tokenizer, grammar, right, wrong):
    assert all(matches(tokenizer, grammar, text) for text in right)
    assert not any(matches(tokenizer, grammar, text) for text in wrong)


@pytest.mark.parametrize("seed", range(3))
def test_what_gbnf_lets_through_is_what_it_says(tokenizer, seed):
    text, complete = write(tokenizer, seed, grammar=JSON_IN_GBNF)
    assert not complete or isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ('root ::= "a', "line 1"),
        ("root ::= b", "'b' not found"),
        ('other ::= "a"', "'root'"),
        ("root ::= " + "(" * 9000 + '"a"' + ")" * 9000, "nested too deeply"),
        ('root ::= "' + "a" * 100_000 + '"', "at most 100000"),
    ],
)
def test_gbnf_that_cannot_be_read_is_refused_with_the_reason(tokenizer, grammar, told):
    with pytest.raises(SamplingError, match="grammar") as caught:
        Grammar(Sampling(grammar=grammar), tokenizer.vocab_size, tokenizer)
    assert told in str(caught.value) and caught.value.field == "grammar" and "\n" not in str(caught.value)
