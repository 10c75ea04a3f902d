"""HTML for people, made from untrusted texts: one place where markup is put together.

A text becomes markup only through `tag` and `text_html`, which escape it and show characters that would be
invisible, change the direction of text or control a terminal. What is markup already has the type `Markup`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import exp, log

from glassloop.util.plain_text import STEERING, PlainTable, escaped

LEVELS = 8  # shades of surprise, from none to the darkest
_BITS = 10.0  # of surprise that have the darkest shade: a probability of one in a thousand
# Everything that escapes a text: those of HTML, and quotes, since texts stand in attributes too.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_VOID = ("br", "meta")
_CELLS = ("td", "th", "caption")  # a line each, so that a search or a copy of the text keeps them apart


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


Part = str | None


def text_html(text: str, newlines: bool = True) -> Markup:
    """Returns a text as HTML that shows each of its characters and interprets none. Without `newlines`, line
    ends and tabs become symbols."""
    parts, at = [], 0
    for match in STEERING.finditer(text):
        parts += [_plain(text[at : match.start()], newlines), f"<code>{escaped(match[0])}</code>"]
        at = match.end()
    return Markup("".join([*parts, _plain(text[at:], newlines)]))


def attribute(text: str) -> str:
    """Returns a text for an attribute, on one line and with its invisible characters shown."""
    shown = STEERING.sub(lambda match: escaped(match[0]), text)
    return shown.replace("\n", "↵").replace("\t", "⇥").translate(_ESCAPES)


def tag(name: str, /, *parts: Part, **attributes: object) -> Markup:
    """Returns an element. Parts that are not `Markup` are escaped; None is left out. The attribute `class_`
    is `class`, other underscores are hyphens, and None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{attribute(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(parts)}</{name}>" + ("\n" if name in _CELLS else ""))


def joined(parts: Sequence[Part]) -> Markup:
    """Returns parts in a row."""
    return Markup(
        "".join(part if isinstance(part, Markup) else text_html(part) for part in parts if part is not None)
    )


def table_html(table: PlainTable, caption: str | None = None) -> Markup:
    """Returns a table, with the same cells that a terminal shows."""
    sides = ["right" if title in table.right else None for title in table.header]
    rows = [
        tag("tr", *(tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in table.rows
    ]
    return tag(
        "table",
        None if caption is None else tag("caption", caption),
        tag("thead", head_row(table.header, table.right)),
        tag("tbody", *rows),
    )


def head_row(titles: Sequence[str], right: Collection[str]) -> Markup:
    """Returns the first row of a table; the titles in `right` are above numbers."""
    cells = [tag("th", each, scope="col", class_="right" if each in right else None) for each in titles]
    return tag("tr", *cells)


def level(logprob: float) -> int:
    """Returns the shade for a probability: 0 if it is near one, more the more surprising it is."""
    if logprob != logprob:  # not known
        return 0
    bits = -logprob / log(2)
    return min(LEVELS - 1, int(LEVELS * max(bits, 0.0) / _BITS))


def bar(logprob: float | None) -> Markup:
    """Returns a bar as long as a probability. It has no number of its own."""
    share = 0.0 if logprob is None or logprob != logprob else 100 * exp(min(logprob, 0.0))
    return tag(
        "span", tag("span", class_="fill", style=f"width:{share:.2f}%"), class_="bar", aria_hidden="true"
    )


def view(*parts: Part, label: str) -> Markup:
    """Returns a view that stands by itself in a notebook: its style and its parts."""
    style = Markup(f"<style>{STYLE}</style>")
    # It can have the focus, since keys scroll it where it is wider than the window.
    return tag("div", style, *parts, class_="glassloop view", role="group", aria_label=label, tabindex="0")


def _plain(text: str, newlines: bool) -> str:
    shown = text if newlines else text.replace("\n", "↵").replace("\t", "⇥")
    return shown.translate(_ESCAPES)


def shade(number: int) -> str:
    """Returns the colour of a shade. It is translucent, so that it suits any background; letters keep the
    colour of the page around them, and the darkest shade still has a contrast of 4.5 to them in the dark
    themes of JupyterLab, VS Code and Colab."""
    return f"rgba(231,111,32,{0.5 * number / (LEVELS - 1):.2f})"


_SHADES = "".join(f".glassloop .p{number}{{background:{shade(number)}}}" for number in range(1, LEVELS))
STYLE = (
    ".glassloop{--line:rgba(127,127,127,.35);--soft:rgba(127,127,127,.12);--bar:#3b7dd8;"
    "font:14px/1.5 system-ui,sans-serif;max-width:76em}.glassloop.view{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){.glassloop{--bar:#6aa5f0}}"
    ".glassloop .text{white-space:pre-wrap;overflow-wrap:anywhere;font:15px/1.75 Georgia,serif;"
    "border-left:3px solid var(--line);padding:.2em .8em;margin:.5em 0}"
    ".glassloop .t{border-radius:3px;unicode-bidi:isolate}.glassloop .t:hover,.glassloop .t:focus-visible"
    "{outline:2px solid var(--bar)}"
    ".glassloop .forced{border-bottom:2px dotted}.glassloop .prompt{opacity:.72}"
    ".glassloop .note,.glassloop caption{opacity:.75;font-size:13px;text-align:left}"
    ".glassloop code{font:85% ui-monospace,monospace;background:var(--soft);border-radius:3px;padding:0 .2em}"
    ".glassloop table{border-collapse:collapse;margin:.5em 0;font-size:13px;"
    "font-variant-numeric:tabular-nums;color:inherit}"
    ".glassloop th,.glassloop td{padding:.15em .6em;text-align:left;border-bottom:1px solid var(--line);"
    "vertical-align:top;background:none;color:inherit}"
    ".glassloop .right{text-align:right}.glassloop summary{cursor:pointer}"
    ".glassloop .bar{display:inline-block;width:7em;height:.7em;background:var(--soft);border-radius:2px}"
    ".glassloop .fill{display:block;height:100%;background:var(--bar);border-radius:2px}"
    ".glassloop .two{display:grid;grid-template-columns:repeat(auto-fit,minmax(20em,1fr));gap:0 1.5em}"
) + _SHADES
