"""IFEval's checks: an answer that follows and one that does not, for every kind of instruction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassloop.evaluate
from glassloop.errors import GlassloopError
from glassloop.search.verify.ifeval import KINDS, IFEval, Instruction, follows
from glassloop.search.verify.sentences import count_words, split_sentences, words

DATA = Path(glassloop.evaluate.__file__).with_name("data") / "ifeval.jsonl"
LONG = "This is a plain English sentence about the sea and the ships that sail on it every day."

CASES: dict[str, tuple[dict[str, object], list[str], list[str]]] = {
    "keywords:existence": ({"keywords": ["rock", "Sea"]}, ["The SEA has rocks"], ["the sea", "rock"]),
    "keywords:frequency": (
        {"keyword": "sea", "frequency": 2, "relation": "at least"},
        ["sea and Sea", "seasea"],
        ["one sea"],
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["rock"]}, ["rocket", "stone"], ["A Rock!"]),
    "keywords:letter_frequency": (
        {"letter": "q", "let_frequency": 2, "let_relation": "less than"},
        ["Q", "none"],
        ["qQ", "q q q"],
    ),
    "language:response_language": (
        {"language": "de"},
        ["Das ist ein einfacher deutscher Satz über das Meer und die Schiffe."],
        [LONG],
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 3, "relation": "less than"},
        ["One. Two!", "Dr. Who is here, e.g. in 3.5 places. Yes."],
        ["One. Two! Three?"],
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2},
        ["a\n***\nb", "***\na\n***\nb\n***"],
        ["a", "a\n***\n***\nb", "a *** b *** c"],
    ),
    "length_constraints:number_words": (
        {"num_words": 3, "relation": "at least"},
        ["a b c", "it's a"],
        ["a b", "..."],
    ),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ["One.\n\nWeekend, at last", 'a\n\n"weekend" b'],
        ["weekend\n\nx", "a\n\nb\n\nweekend", "a", "a\n\n\n\nweekend"],
    ),
    "detectable_content:number_placeholders": (
        {"num_placeholders": 2},
        ["[a] and [b]"],
        ["[a]", "[a\nb] [c]"],
    ),
    "detectable_content:postscript": (
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. more", "p. s. x"],
        ["Bye", "PS more"],
    ),
    "detectable_format:number_bullet_lists": (
        {"num_bullets": 2},
        ["* a\n* b", "- a\n text\n  - b", "* a\n- b"],
        ["* a", "* a\n* b\n* c", "** a\n** b"],
    ),
    "detectable_format:constrained_response": (
        {},
        ["My answer is yes.", "Well. My answer is maybe. So."],
        ["yes", "my answer is yes"],
    ),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2},
        ["*a* and *b*", "**a**, **b**"],
        ["*a*", "* *, * *", "none"],
    ),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb"],
        ["SECTION 1\na", "SECTION a SECTION b"],
    ),
    "detectable_format:json_format": (
        {},
        ['{"a": 1}', '```json\n{"a": [1]}\n```', "3"],
        ["{a: 1}", 'Here: {"a": 1}', "[" * 100_000],
    ),
    "detectable_format:title": ({}, ["<<A Title>>\ntext"], ["<< >>", "<<a\nb>>", "<a>"]),
    "combination:two_responses": (
        {},
        ["a******b", "******a******b"],
        ["a******a", "a", "a******b******c", "a************b"],
    ),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Write a poem. "},
        ["WRITE A POEM. Roses are red", " write a poem.x"],
        ["Sure: Write a poem."],
    ),
    "startend:end_checker": ({"end_phrase": "The End"}, ["... the end", '"x THE END" '], ["The End.", "x"]),
    "startend:quotation": ({}, ['"a"', ' "a" '], ["a", '"', '"a', "'a'"]),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["THE sea IS", "NASA, (USA)!", "I said NO"],
        ["The Sea", "NASA is", "3 4 5"],
    ),
    "change_case:english_capital": ({}, [LONG.upper()], [LONG, "123"]),
    "change_case:english_lowercase": ({}, [LONG.lower()], [LONG, "123"]),
    "punctuation:no_comma": ({}, ["a; b"], ["a, b"]),
}


def test_every_kind_has_cases() -> None:
    assert set(CASES) == set(KINDS) and len(KINDS) == 25


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_and_what_does_not(kind: str) -> None:
    arguments, good, bad = CASES[kind]
    for text in good:
        assert follows(Instruction(kind, arguments), text), text
        assert follows(Instruction(kind, arguments), text, loose=True), text
    for text in bad:
        assert not follows(Instruction(kind, arguments), text), text
    assert not follows(Instruction(kind, arguments), "  \n"), "an empty answer follows nothing"


def test_the_loose_check_forgives_an_introduction_and_asterisks() -> None:
    ending = Instruction("startend:end_checker", {"end_phrase": "the end"})
    for text in ("x\n**The End**", "x the end\nI hope this helps!"):
        assert follows(ending, text, loose=True) and not follows(ending, text)
    repeat = Instruction("combination:repeat_prompt", {"prompt_to_repeat": "Do it."})
    assert follows(repeat, "Sure!\nDo it. Done.\nBye", loose=True)
    assert not follows(repeat, "Sure! Do it.", loose=True)


def test_every_prompt_of_the_benchmark_has_a_verifier() -> None:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    verifiers = [IFEval.of(row) for row in rows]
    assert len(verifiers) == 541 and sum(len(each.instructions) for each in verifiers) == 834
    for verifier in verifiers[:60]:
        verdict = verifier(LONG)
        assert 0 <= verdict.score <= 1 and verdict.passed == (verdict.score == 1)


def test_the_score_is_the_share_of_instructions() -> None:
    row = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, {"x": None}]}
    verdict = IFEval.of(row)("no comma")
    assert (verdict.passed, verdict.score) == (False, 0.5) and "startend:quotation" in verdict.reason


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"instruction_id_list": ["x:y"], "kwargs": [{}]}, "instruction_id_list has 'x:y'"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "differ in length"),
        ({}, "differ in length or are missing"),
    ],
)
def test_a_row_that_cannot_be_checked_is_refused(row: dict[str, object], told: str) -> None:
    with pytest.raises(GlassloopError, match=told):
        IFEval.of(row)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(GlassloopError, match="kwargs of keywords:existence are wrong"):
        follows(Instruction("keywords:existence", {"keyword": "x"}), "x")
    with pytest.raises(GlassloopError, match="relation is 'more'"):
        follows(Instruction("length_constraints:number_words", {"num_words": 1, "relation": "more"}), "x")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_no_answer_breaks_a_check(text: str) -> None:
    for kind in KINDS:
        if "language" not in kind and "english" not in kind:
            follows(Instruction(kind, CASES[kind][0]), text, loose=True)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two.", 2),
        ("Mr. and Mrs. Smith met Dr. Who. They talked.", 2),
        ("It costs 3.50 dollars. Really? Yes!", 3),
        ('He said "Stop." Then he left.', 2),
        ("Wait... what? No.", 2),
        ("1. First item. 2. Second item.", 2),
        ("J. R. Smith wrote it.", 1),
        ("A heading\n\nA text. Another one", 3),
        ("e.g. this, i.e. that.", 1),
        ("Hello!!! How are you?!", 2),
        ("你好。再见。", 2),
    ],
)
def test_sentences_are_counted_as_people_do(text: str, count: int) -> None:
    assert len(split_sentences(text)) == count


def test_words() -> None:
    assert count_words("It's a well-known fact, 3.5 times.") == 9
    assert words('"DON\'T" STOP -- NOW/LATER (OK)!') == ["DO", "N'T", "STOP", "NOW", "LATER", "OK"]
