"""A run as one HTML page that opens anywhere, without a network: its text, its tree, and for each token the
record of how it was chosen. Explanations and lenses that were computed can be put into it.

The page has no external parts, and its Content-Security-Policy allows nothing but its own script and style.
Without scripts it still shows all texts, the tree, and each token's reason as a tooltip.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from math import exp, isinf, isnan
from pathlib import Path
from typing import Any, Protocol

from glassloop.decode.explanation import Explanation, explanation_parts
from glassloop.errors import TraceError
from glassloop.record.messages import text_of
from glassloop.record.run_record import RunRecord
from glassloop.record.run_tree import RunTree
from glassloop.record.token import Token
from glassloop.record.views.token_html import facts_line, prompt_text, token_span
from glassloop.util.html_text import STYLE, Markup, tag, text_html
from glassloop.util.plain_text import number as in_form
from glassloop.util.plain_text import percent, quoted, visible
from glassloop.util.shown import cut, shown

MOST_RUNS = 200  # in the tree
MOST_TOKENS = 20_000  # shown, of all runs together; further runs are in the tree only
_ALTERNATIVES = 8  # of a token
_STYLE_ATTRIBUTE = re.compile(r' style="background-color:[^"]*"')  # quotes of texts are escaped
_OWN = 48  # characters of a run's own text in the tree
_MOST_PROMPT = 20_000  # characters


class Shown(Protocol):
    """Something that shows itself in a notebook, such as a lens or a comparison."""

    def _repr_html_(self) -> str: ...


def _check_shown(explanations: object, extras: object) -> None:
    """Raises unless what a page shows beside the run can be shown."""
    explained = isinstance(explanations, Mapping) and all(
        isinstance(each, Explanation) for each in explanations.values()
    )
    if explanations is not None and not explained:
        problem = f"is {shown(explanations)}; a mapping from places to explanations is expected"
        raise TraceError.about("explanations", problem)
    if not isinstance(extras, Sequence) or not all(hasattr(each, "_repr_html_") for each in extras):
        problem = f"is {shown(extras)}; a list of lenses and comparisons is expected"
        raise TraceError.about("extras", problem)


def page(
    run: RunRecord,
    explanations: Mapping[int, Explanation] | None = None,
    extras: Sequence[Shown] = (),
    tree: bool = True,
    others: Sequence[RunRecord] | None = None,
) -> str:
    """Returns the page of a run. `explanations` are by the place of the token, from 0; `extras` are lenses
    and comparisons, which stand below the text. Without `tree`, only this run is in the page; `others` are
    the other runs of its tree, if they are not those that it is linked with."""
    _check_shown(explanations, extras)
    if others is not None:
        runs = [run, *others][:MOST_RUNS]
    else:
        runs = RunTree.of(run).from_run(run)[:MOST_RUNS] if tree else [run]
    records, texts = _Records(), []
    left = MOST_TOKENS
    for number, each in enumerate(runs):
        left -= len(each.tokens)
        if left < 0 and number:
            break
        texts.append(_text(number, each, records))
    whys = [
        tag(
            "details",
            tag("summary", f"Why {quoted(explanation.taken.text)}"),
            tag("div", *explanation_parts(explanation, at), class_="scroll", tabindex="0"),
            id=f"why-{records.key(run, at)}",
        )
        for at, explanation in sorted((explanations or {}).items())
    ]
    shown = [tag("section", _inside(extra)) for extra in extras]
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created))
    body = tag(
        "div",
        tag(
            "header",
            tag("h1", run.title),
            tag("div", f"{facts_line(run)} · {date} · {run.ops}", class_="note"),
        ),
        tag(
            "main",
            tag(
                "div",
                _conversation(run),
                *texts,
                tag("h2", "Runs of this tree") if len(runs) > 1 else None,
                _tree(runs, len(texts)) if len(runs) > 1 else None,
                *_folded(whys),
                tag("h2", "Lenses and comparisons") if shown else None,
                *shown,
            ),
            tag("aside", tag("p", _HELP, class_="note"), id="panel", aria_live="polite"),
        ),
        class_="glassloop",
    )
    style, script = STYLE + _part("page.css"), _part("page.js")
    policy = (
        f"default-src 'none';style-src {_source(style)};script-src {_source(script)};"
        "base-uri 'none';form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content=policy,
        ),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        Markup(f"<title>{text_html(cut(visible(run.title), 80))}</title>"),
        Markup(f"<style>{style}</style>"),
    )
    data = Markup(f'<script type="application/json" id="records">{records.json()}</script>')
    code = Markup(f"<script>{script}</script>")
    return "<!doctype html>\n" + tag("html", head, tag("body", body, data, code), lang="en") + "\n"


_HELP = "Click a token, or go to the text with Tab and on with the arrow keys, to see how it was chosen."


def _folded(whys: Sequence[Markup]) -> Sequence[Markup]:
    """Returns several explanations as one fold, as a click on a token shows its own in the panel."""
    if len(whys) < 2:
        return whys
    return [tag("details", tag("summary", f"Why each of these {len(whys)} tokens"), *whys)]


class _Records:
    """The records of all tokens in a page. A token that a fork took over from its parent is there once."""

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._records: dict[str, Any] = {}
        self._tokens: list[Token] = []  # so that no other token has the same id() meanwhile

    def add(self, token: Token) -> str:
        key = self._keys.get(id(token))
        if key is None:
            key = self._keys[id(token)] = str(len(self._keys))
            self._tokens.append(token)
            self._records[key] = record(token)
        return key

    def key(self, run: RunRecord, at: int) -> str | None:
        tokens = [*run.tokens, *([run.end] if run.end else [])]
        return self._keys.get(id(tokens[at])) if 0 <= at < len(tokens) else None

    def json(self) -> str:
        """Returns the records as JSON that cannot end the element that it is in."""
        text = json.dumps(self._records, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


def record(token: Token) -> list[Any]:
    """Returns what the panel of a page or a notebook shows of a token: its piece, its numbers, and of each
    alternative the text, the probabilities, the width of its bar and the id."""
    numbers = [
        ("id", str(token.id)),
        ("model", percent(token.raw_logprob)),
        ("after stages", percent(token.logprob)),
        ("rank", f"{token.rank}, then {token.rank_after}" if token.rank else "?"),
        ("entropy", f"{in_form(token.entropy, '.3f')} nats"),
        ("luck", in_form(token.luck, "+.3f")),
        ("margin", "–" if isinf(token.margin) else in_form(token.margin, ".3f")),
        ("source", token.source),
    ]
    if token.refused is not None:
        numbers.append(("rejected draft", quoted(token.refused.text)))
    alternatives = [
        (quoted(cut(text, 80)), percent(raw), _after(after), _share(raw), id)
        for id, text, after, raw in token.alternatives[:_ALTERNATIVES]
    ]
    return [quoted(token.piece), numbers, alternatives]


def _after(logprob: float) -> str:
    return "removed" if logprob == float("-inf") else percent(logprob)


def _share(logprob: float) -> float:
    return 0.0 if isnan(logprob) else round(100 * exp(min(logprob, 0.0)), 2)


def _text(number: int, run: RunRecord, records: _Records) -> Markup:
    spans = [token_span(token, data_k=records.add(token)) for token in run.tokens]
    end = None
    if run.end is not None:
        key = records.add(run.end)
        end = tag("span", "■", class_="t end", title=f"{quoted(run.end.piece)}: ended the run", data_k=key)
    prompt = None if run.messages is not None else prompt_text(run)
    start = None if prompt is None else tag("span", cut(prompt, _MOST_PROMPT), class_="prompt")
    heading = None if number == 0 else tag("div", _line(run), class_="note")
    return tag(
        "section", heading, tag("div", start, *spans, run.tail, end, class_="text"), data_run=str(number)
    )


def _line(run: RunRecord) -> str:
    text = "".join(token.text for token in run.tokens[run.fork_at or 0 :]) + run.tail
    how = f"at {run.fork_at} {run.reason}: " if run.parent else ""
    return (
        f"{how}{cut(text, _OWN)!r} ({run.id[:8]}, {len(run.tokens)} tokens, {run.finish_reason or 'running'})"
    )


def _tree(runs: Sequence[RunRecord], shown: int) -> Markup:
    numbers = {run.id: number for number, run in enumerate(runs)}
    below: dict[str | None, list[RunRecord]] = {}
    for run in runs:
        below.setdefault(run.parent if run.parent in numbers else None, []).append(run)

    def item(run: RunRecord, depth: int) -> Markup:
        number = numbers[run.id]
        target = {"data_shows": str(number)} if number < shown else {"disabled": ""}
        button = tag("button", _line(run), type="button", **target)
        forks = below.get(run.id, []) if depth < 50 else []
        return tag("li", button, tag("ul", *(item(fork, depth + 1) for fork in forks)) if forks else None)

    return tag("ul", *(item(run, 0) for run in below.get(None, [])), class_="tree")


def _conversation(run: RunRecord) -> Markup | None:
    """Returns the messages that the prompt of a run is, if it is a conversation."""
    if run.messages is None:
        return None
    said = [
        tag("p", tag("strong", f"{each['role']}: "), cut(text_of(each), _MOST_PROMPT), class_="prompt")
        for each in run.messages
    ]
    return tag("div", *said, class_="text")


def _inside(extra: Shown) -> Markup:
    """Returns what an object shows of itself, without its own copy of the style and without the attributes
    that repeat it, which the policy of the page forbids."""
    markup = extra._repr_html_().replace(f"<style>{STYLE}</style>", "", 1)
    return Markup(_STYLE_ATTRIBUTE.sub("", markup))


@cache
def _part(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """Returns how a policy names an inline script or style: by its hash."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
