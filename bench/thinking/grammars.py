"""The instructions of IFEval as regular languages, so that a text that follows them all can be forced.

Each kind of instruction is a function from its arguments to a terminal of a Lark grammar; the grammar of a
prompt is the intersection of its terminals. What must occur has to occur within a bounded number of
characters: without a bound a model could go on until it is cut off. Languages and JSON beside other
instructions have no such form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from glassloop.search.verify.ifeval import Instruction

_ANY = r"(?s:.)"
_GAP = 300  # characters before the next thing that must occur
_BODY = 1200  # characters of a text before its prescribed end, or of one of two parts

_Terminal = Callable[..., str]
_TERMINALS: dict[str, _Terminal] = {}


def sampling_options(instructions: Sequence[Instruction]) -> dict[str, Any] | None:
    """Returns the options of `Sampling` that force a text to follow all instructions, or None if a grammar
    cannot express one of them."""
    if [each.kind for each in instructions] == ["detectable_format:json_format"]:
        return {"json_schema": {"type": "object"}}
    if any(each.kind not in _TERMINALS for each in instructions):
        return None
    parts = [_TERMINALS[each.kind](**each.arguments) for each in instructions]
    return {"grammar": f"start: TEXT\nTEXT: {' & '.join(parts)}\n"}


def _terminal(name: str) -> Callable[[_Terminal], _Terminal]:
    def register(function: _Terminal) -> _Terminal:
        _TERMINALS[name] = function
        return function

    return register


def _quoted(text: str) -> str:
    """Returns a regular expression that matches a text and nothing else."""
    escapes = {"\n": r"\n", "\t": r"\t", "<": "<", ">": ">"}
    plain = [
        escapes.get(each, each if each.isalnum() or each == " " or ord(each) > 127 else f"\\{each}")
        for each in text
    ]
    return "".join(plain)


def _at_least(item: str, count: int, gap: int = _GAP) -> str:
    """Returns a terminal: `item` occurs `count` times, each within `gap` characters of the one before."""
    return f"/({_ANY}{{0,{gap}}}{item}){{{count}}}{_ANY}*/" if count > 0 else f"/{_ANY}*/"


def _less_than(item: str, count: int) -> str:
    return f"~/({_ANY}*{item}){{{count}}}{_ANY}*/"


def _counted(item: str, count: int, relation: str, gap: int = _GAP) -> str:
    return _at_least(item, count, gap) if relation == "at least" else _less_than(item, count)


@_terminal("keywords:existence")
def _existence(keywords: Sequence[str]) -> str:
    gap = _BODY // len(keywords)
    parts = [_at_least(f"(?i:{_quoted(word)})", 1, gap * at) for at, word in enumerate(keywords, start=1)]
    return " & ".join(parts)


@_terminal("keywords:frequency")
def _frequency(keyword: str, frequency: int, relation: str) -> str:
    return _counted(f"(?i:{_quoted(keyword)})", frequency, relation)


@_terminal("keywords:forbidden_words")
def _forbidden(forbidden_words: Sequence[str]) -> str:
    words = "|".join(map(_quoted, forbidden_words))
    return f"~/({_ANY}*\\W)?(?i:{words})(\\W{_ANY}*)?/"


@_terminal("keywords:letter_frequency")
def _letters(letter: str, let_frequency: int, let_relation: str) -> str:
    one = f"(?i:{_quoted(letter)})"
    if let_relation == "at least":  # letters come by themselves
        return f"/({_ANY}*{one}){{{let_frequency}}}{_ANY}*/"
    return _less_than(one, let_frequency)


@_terminal("length_constraints:number_sentences")
def _sentences(num_sentences: int, relation: str) -> str:
    sentence = r"[A-Z][^.!?…\n]{8,300}[a-z][.!?]"
    if relation == "at least":
        return f"/({sentence}[ \\n]{{1,2}}){{{num_sentences},}}({sentence})?/"
    return f"/({sentence} ){{0,{num_sentences - 2}}}{sentence}/" if num_sentences > 1 else "/[^.!?…]{1,200}/"


@_terminal("length_constraints:number_words")
def _words(num_words: int, relation: str) -> str:
    word, between = "[a-zA-Z0-9]+", r"[ -\/:-@\[-`{-~\n]+"
    if relation == "at least":
        return f"/({word}{between}){{{num_words},}}({word})?/"
    return f"/({word}{between}){{0,{num_words - 2}}}{word}[.!?]?/"


@_terminal("length_constraints:number_paragraphs")
def _paragraphs(num_paragraphs: int) -> str:
    return rf"/[^*\s][^*]{{20,{_BODY}}}(\n\n\*\*\*\n\n[^*\s][^*]{{20,{_BODY}}}){{{num_paragraphs - 1}}}/"


@_terminal("length_constraints:nth_paragraph_first_word")
def _first_word(num_paragraphs: int, nth_paragraph: int, first_word: str) -> str:
    rest = rf"[^\n]{{20,{_BODY}}}"
    marked = rf"(?i:{_quoted(first_word)})[ ,.]{rest}"
    parts = [marked if at == nth_paragraph else rf"\S{rest}" for at in range(1, num_paragraphs + 1)]
    return "/" + r"\n\n".join(parts) + "/"


@_terminal("detectable_content:number_placeholders")
def _placeholders(num_placeholders: int) -> str:
    return _at_least(r"\[[a-z][a-z ]{1,30}\]", num_placeholders)


@_terminal("detectable_content:postscript")
def _postscript(postscript_marker: str) -> str:
    return rf"/{_ANY}{{1,{_BODY}}}\n{_quoted(postscript_marker)} {_ANY}{{1,{_GAP}}}/"


@_terminal("detectable_format:number_bullet_lists")
def _bullets(num_bullets: int) -> str:
    return rf"/([^*\-\s][^\n]*\n+)*(\* [^\n*]{{1,{_GAP}}}\n){{{num_bullets}}}(\n*[^*\-\s][^\n]{{0,{_GAP}}})?/"


@_terminal("detectable_format:constrained_response")
def _constrained() -> str:
    return "/My answer is (yes|no|maybe)\\./"


@_terminal("detectable_format:number_highlighted_sections")
def _highlights(num_highlights: int) -> str:
    return rf"/([^*]{{0,{_GAP}}}\*[^*\s][^*\n]{{1,80}}\*){{{num_highlights},}}[^*]{{0,{_BODY}}}/"


@_terminal("detectable_format:multiple_sections")
def _sections(section_spliter: str, num_sections: int) -> str:
    parts = [rf"{_quoted(section_spliter)} {at}\n{_ANY}{{20,{_GAP}}}\n" for at in range(1, num_sections + 1)]
    return f"/{''.join(parts)}/"


@_terminal("detectable_format:title")
def _title() -> str:
    return rf"/<<[^\n<>]{{3,80}}>>\n{_ANY}+/"


@_terminal("combination:two_responses")
def _two_responses() -> str:
    return rf"/[^*\s][^*]{{20,{_BODY}}}\*\*\*\*\*\*[^*]{{20,{_BODY}}}/"


@_terminal("combination:repeat_prompt")
def _repeat(prompt_to_repeat: str) -> str:
    return rf"/{_quoted(prompt_to_repeat.strip())}\n{_ANY}+/"


@_terminal("startend:end_checker")
def _ending(end_phrase: str) -> str:
    return rf"/{_ANY}{{1,{_BODY}}}{_quoted(end_phrase.strip())}/"


@_terminal("startend:quotation")
def _quotation() -> str:
    return rf'/"[^"]{{1,{2 * _BODY}}}"/'


@_terminal("change_case:capital_word_frequency")
def _capitals(capital_frequency: int, capital_relation: str) -> str:
    if capital_relation == "at least":
        return _at_least(r"[ \n][A-Z]{2,12}[ \n.,!]", capital_frequency)
    small = r"([^\sA-Z]+|[^\sA-Z]*[A-Z][a-z][^\sA-Z]*)"
    rest = rf"(\s+{small})*"
    return rf"/{small}{rest}(\s+\S+{rest}){{0,{max(0, capital_frequency - 1)}}}\s*/"


@_terminal("change_case:english_capital")
def _upper() -> str:
    return r"/[ -`{-~\n]+/"


@_terminal("change_case:english_lowercase")
def _lower() -> str:
    return r"/[ -@\[-~\n]+/"


@_terminal("punctuation:no_comma")
def _no_comma() -> str:
    return "/[^,]+/"
