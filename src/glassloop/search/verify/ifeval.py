"""The checks of IFEval (Zhou et al., 2023): 25 kinds of instructions that a program can verify.

Each kind is a function of the answer and the instruction's arguments. `follows` is the strict check of one
instruction; the loose check accepts the answer if it passes with or without its first line, its last line and
its asterisks. `IFEval` is the verifier of a prompt with all its instructions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.search.verdict import Verdict
from glassloop.search.verify.sentences import count_words, split_sentences, words
from glassloop.util.shown import shown

LONGEST = 200_000  # characters of an answer
_NEEDS_LANGUAGE = (
    "language:response_language",
    "change_case:english_capital",
    "change_case:english_lowercase",
)

Check = Callable[..., bool]
_CHECKS: dict[str, Check] = {}


def _check(name: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        _CHECKS[name] = function
        return function

    return register


@dataclass(frozen=True)
class Instruction:
    """One instruction: its kind, as `keywords:existence`, and its arguments."""

    kind: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class IFEval:
    """The verifier of a prompt of IFEval. The score is the share of its instructions that are followed, and a
    text passes if all of them are."""

    instructions: tuple[Instruction, ...]
    loose: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any], *, loose: bool = False) -> IFEval:
        """Returns the verifier of a row of the published file: `instruction_id_list` and `kwargs`."""
        kinds, arguments = row.get("instruction_id_list"), row.get("kwargs")
        if not isinstance(kinds, list) or not isinstance(arguments, list) or len(kinds) != len(arguments):
            problem = "and kwargs differ in length or are missing; two lists of the same length are expected"
            raise GlassloopError.about("instruction_id_list", problem)
        instructions = []
        for kind, options in zip(kinds, arguments, strict=True):
            if kind not in _CHECKS:
                problem = f"has {shown(kind)}; one of {', '.join(sorted(_CHECKS))} is expected"
                raise GlassloopError.about("instruction_id_list", problem)
            values = {name: value for name, value in (options or {}).items() if value is not None}
            instructions.append(Instruction(kind, values))
        return cls(tuple(instructions), loose)

    def check(self) -> None:
        """Raises GlassloopError if an instruction needs a library that is not installed."""
        if any(each.kind in _NEEDS_LANGUAGE for each in self.instructions):
            _detector()

    def __call__(self, text: str) -> Verdict:
        followed = [follows(each, text, loose=self.loose) for each in self.instructions]
        missed = [each.kind for each, passed in zip(self.instructions, followed, strict=True) if not passed]
        score = sum(followed) / len(followed) if followed else 1.0
        reason = f"not followed: {', '.join(missed)}" if missed else "all instructions are followed"
        return Verdict(not missed, score, reason)


def follows(instruction: Instruction, text: str, *, loose: bool = False) -> bool:
    """Returns whether a text follows an instruction."""
    check = _CHECKS[instruction.kind]
    variants = _variants(text[:LONGEST]) if loose else [text[:LONGEST]]
    try:
        return any(variant.strip() and check(variant, **instruction.arguments) for variant in variants)
    except TypeError as error:
        raise GlassloopError.about("kwargs", f"of {instruction.kind} are wrong: {error}") from None


def _variants(text: str) -> list[str]:
    lines = text.split("\n")
    cuts = [lines[first : len(lines) - last] for first, last in product((0, 1), (0, 1))]
    joined = ["\n".join(cut).strip() if len(cut) < len(lines) else text for cut in cuts]
    return [variant for each in joined for variant in (each, each.replace("*", ""))]


def _compare(count: int, relation: str, limit: int) -> bool:
    if relation == "at least":
        return count >= limit
    if relation == "less than":
        return count < limit
    problem = f"is {shown(relation)}; 'at least' or 'less than' is expected"
    raise GlassloopError.about("relation", problem)


@_check("keywords:existence")
def _existence(text: str, keywords: Sequence[str]) -> bool:
    return all(re.search(re.escape(keyword), text, re.IGNORECASE) for keyword in keywords)


@_check("keywords:frequency")
def _frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _compare(len(re.findall(re.escape(keyword), text, re.IGNORECASE)), relation, frequency)


@_check("keywords:forbidden_words")
def _forbidden(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


@_check("keywords:letter_frequency")
def _letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _compare(Counter(text.lower())[letter.lower()], let_relation, let_frequency)


@_check("language:response_language")
def _language(text: str, language: str) -> bool:
    return detect_language(text) in (language, None)


@_check("length_constraints:number_sentences")
def _sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compare(len(split_sentences(text)), relation, num_sentences)


@_check("length_constraints:number_paragraphs")
def _paragraphs(text: str, num_paragraphs: int) -> bool:
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not part.strip() for part in parts[1:-1]):
        return False
    return sum(bool(part.strip()) for part in parts) == num_paragraphs


@_check("length_constraints:number_words")
def _words(text: str, num_words: int, relation: str) -> bool:
    return _compare(count_words(text), relation, num_words)


@_check("length_constraints:nth_paragraph_first_word")
def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = text.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if not 1 <= nth_paragraph <= count or not (paragraph := parts[nth_paragraph - 1].strip()):
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    begun = re.match(r"[^.,?!'\"]*", word)
    assert begun is not None
    return count == num_paragraphs and begun[0].lower() == first_word.lower()


@_check("detectable_content:number_placeholders")
def _placeholders(text: str, num_placeholders: int) -> bool:
    return sum(map(_brackets, text.split("\n"))) >= num_placeholders


def _brackets(line: str) -> int:
    """Returns how many texts in square brackets a line has, in one pass over it."""
    count = place = 0
    while (opened := line.find("[", place)) >= 0 and (closed := line.find("]", opened)) >= 0:
        count, place = count + 1, closed + 1
    return count


@_check("detectable_content:postscript")
def _postscript(text: str, postscript_marker: str) -> bool:
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = patterns.get(postscript_marker, re.escape(postscript_marker.lower()))
    return re.search(pattern, text.lower()) is not None


@_check("detectable_format:number_bullet_lists")
def _bullets(text: str, num_bullets: int) -> bool:
    stars = re.findall(r"^\s*\*[^*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


@_check("detectable_format:constrained_response")
def _constrained(text: str) -> bool:
    return any(f"My answer is {answer}." in text for answer in ("yes", "no", "maybe"))


@_check("detectable_format:number_highlighted_sections")
def _highlights(text: str, num_highlights: int) -> bool:
    single = re.findall(r"\*[^\n*]*\*", text)
    double = re.findall(r"\*\*[^\n*]*\*\*", text)
    count = sum(bool(highlight.strip("*").strip()) for highlight in single)
    return count + sum(bool(highlight[2:-2].strip()) for highlight in double) >= num_highlights


@_check("detectable_format:multiple_sections")
def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.split(rf"\s?{re.escape(section_spliter)}\s?\d+\s?", text)) - 1 >= num_sections


@_check("detectable_format:json_format")
def _json(text: str) -> bool:
    inner = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        inner = inner.removeprefix(fence)
    try:
        json.loads(inner.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@_check("detectable_format:title")
def _title(text: str) -> bool:
    for line in text.split("\n"):
        first, last = line.find("<<"), line.rfind(">>")
        if 0 <= first < last - 2 and line[first : last + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


@_check("combination:two_responses")
def _two_responses(text: str) -> bool:
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    valid = [part.strip() for part in parts if part.strip()]
    return len(valid) == 2 and valid[0] != valid[1]


@_check("combination:repeat_prompt")
def _repeat(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@_check("startend:end_checker")
def _ending(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@_check("startend:quotation")
def _quotation(text: str) -> bool:
    inner = text.strip()
    return len(inner) > 1 and inner[0] == inner[-1] == '"'


@_check("change_case:capital_word_frequency")
def _capitals(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _compare(sum(word.isupper() for word in words(text)), capital_relation, capital_frequency)


@_check("change_case:english_capital")
def _upper(text: str) -> bool:
    return text.isupper() and detect_language(text) in ("en", None)


@_check("change_case:english_lowercase")
def _lower(text: str) -> bool:
    return text.islower() and detect_language(text) in ("en", None)


@_check("punctuation:no_comma")
def _no_comma(text: str) -> bool:
    return "," not in text


KINDS = tuple(_CHECKS)


@lru_cache(maxsize=4096)
def detect_language(text: str) -> str | None:
    """Returns the language code that `langdetect` finds, always the same for the same text; None if the text
    has nothing to detect it by, which counts as followed, as published."""
    library = _detector()
    try:
        language: str = library.detect(text)
    except library.LangDetectException:
        return None
    return language


def _detector() -> Any:
    try:
        import langdetect
    except ImportError:
        raise GlassloopError(
            "the language checks of IFEval need langdetect: pip install 'glassloop[eval]'"
        ) from None
    # It samples; without a seed the same text may give two answers.
    langdetect.DetectorFactory.seed = 0
    return langdetect
