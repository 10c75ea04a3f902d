"""What runs, comparisons, explanations and lenses show of themselves as HTML: every text is shown and none is
interpreted, every number is that of the record, and a page needs nothing but itself."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from copy import copy
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from browser import needs_chromium, shown
from engine.random_runs import PROMPT, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Run, Sampling, diff
from glassloop.record.views.page import page
from glassloop.record.views.token_html import reason
from glassloop.util.html_text import LEVELS, attribute, level, shade, tag, text_html
from glassloop.util.plain_text import STEERING, percent, quoted, visible

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><b>",
    "</script><!--",
    "&lt;b&gt; &amp; &#60;",
    "' onmouseover='alert(1)",
    "\u202eright to left\u2066",
    "\x00\x1b[2J\x7f\x85",
    "\u2028\u2029\ud800\U000e0041",
    "a\tb\nc",
]
texts = st.text(max_size=20) | st.sampled_from(HOSTILE)
ALLOWED = {
    *(
        "div",
        "span",
        "style",
        "details",
        "summary",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "caption",
        "p",
    ),
    *("pre", "code", "strong", "h1", "h2", "ul", "li", "button", "section", "aside", "main", "header"),
    *("html", "head", "body", "meta", "title", "script"),
}


class Seen(HTMLParser):
    """The elements, attributes and texts that a parser finds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        into = self.raw.get(self._open[-1] if self._open else "", self.texts)
        into.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def check(self) -> Seen:
        """Asserts that there is nothing but what we write, and that nothing is loaded or run."""
        assert self._open == [] and {name for name, _ in self.elements} <= ALLOWED
        for _, attributes in self.elements:
            assert not {"src", "href", "srcset", "action", "data", "srcdoc"} & set(attributes)
            assert not any(name.startswith("on") for name in attributes)
        return self


def make(tokens: int = 6, seed: int = 1, **options) -> Run:
    wanted = {"max_tokens": tokens, "ignore_eos": True, "logprobs": 5, **options}
    return small_llm().generate(PROMPT, Sampling(seed=seed, **wanted))


def hostile_run(pieces: list[str]) -> Run:
    """A run whose tokens, and all else that a file could hold, have these texts."""
    run = make(tokens=len(pieces))
    for token, piece in zip(run.tokens, pieces, strict=True):
        token.text, token._pieces = piece, lambda id, piece=piece: piece
    run.prompt, run.model, run.tail, run.stop_reason = "".join(pieces), pieces[0], pieces[-1], pieces[0]
    return run


@settings(max_examples=200)
@given(texts)
def test_any_text_is_shown_and_never_interpreted(text):
    seen = Seen(tag("p", text, title=text))
    ((name, attributes), *others) = seen.elements
    assert (name, set(attributes)) == ("p", {"title"}) and {each for each, _ in others} <= {"code"}
    # A parser reads back what was written, with the invisible made visible; NUL is one of these.
    assert "".join(seen.texts) == visible(text)
    assert attributes["title"] == visible(text, newlines=False)
    assert not STEERING.search(text_html(text)) and not STEERING.search(attribute(text))
    assert "<" not in attribute(text) and '"' not in attribute(text)


@settings(max_examples=25, deadline=None)
@given(st.lists(texts, min_size=1, max_size=5))
def test_no_token_escapes_from_a_view_or_a_page(pieces):
    run, other = hostile_run(pieces), hostile_run(pieces[::-1])
    run.messages = [{"role": "user", "content": pieces[0]}] if len(pieces) % 2 else None
    for html in (run._repr_html_(), diff(run, other)._repr_html_(), page(run, extras=[diff(run, other)])):
        seen = Seen(html).check()
        assert not STEERING.search(html)
        assert visible("".join(pieces) + pieces[-1]) in "".join(seen.texts)
        html.encode()  # no lone surrogates


def test_a_run_shows_its_text_and_the_numbers_of_the_record():
    run = make(temperature=0.8, top_k=20)
    html = run._repr_html_()
    assert html.count('<span class="t') == 6
    assert "temperature 0.8, top_k 20, " in html and " · seed 1 · 6 tokens · length" in html
    for token in run.tokens:
        assert attribute(f"{quoted(token.piece)}: {reason(token)}") in html
        assert percent(token.raw_logprob) in reason(token) and f"luck {token.luck:+.2f}" in reason(token)
    shades = [int(found or 0) for found in re.findall(r'<span class="t(?: p(\d))?', html)]
    assert shades == [level(token.raw_logprob) for token in run.tokens] and any(shades)
    # A notebook that is not trusted loses its style sheets, but not these.
    inline = re.findall(r' style="background-color:([^"]*)"', html)
    assert inline == [shade(number) for number in shades if number]
    assert len({level(-bits * 0.693) for bits in (0, 2, 4, 6, 8, 100)}) == 6 and level(-1e9) == level(-50.0)
    assert "<script" not in html
    fork = run.fork(2, token=101, n=1)
    assert "2 runs" in fork._repr_html_()
    assert re.search(r'<span class="t(?: p\d)? forced"', fork._repr_html_())


# Letters and background of notebooks: light, JupyterLab dark, VS Code dark, Colab dark.
THEMES = [(0x21, 0xFF), (0xDF, 0x11), (0xCC, 0x1F), (0xE3, 0x38)]


@pytest.mark.parametrize(("letters", "back"), THEMES)
def test_letters_can_be_read_on_every_shade(letters, back):
    def luminance(colour: list[float]) -> float:
        parts = [each / 255 for each in colour]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for number in range(LEVELS):
        *colour, alpha = map(float, re.findall(r"[\d.]+", shade(number)))
        under = luminance([alpha * each + (1 - alpha) * back for each in colour])
        dark, light = sorted((under, luminance([letters] * 3)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, shade(number)


def test_explanations_lenses_and_comparisons_show_themselves():
    llm, run = small_llm(), make(temperature=0.8, top_k=20)
    other = run.fork(3, temperature=0.1, seed=2)
    told = run.explain(2)
    for made, said in (
        (told, told.sentence),
        (diff(run, other), diff(run, other).sentence),
        (llm.lens.layers(run, 4), "would say"),
        (llm.lens.attention(run, 4), "attends to"),
        (llm.lens.neighbours(65, 3), "cosine"),
    ):
        seen = Seen(made._repr_html_()).check()
        assert said in "".join(seen.texts) and seen.elements[0][1]["aria-label"]


def records(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="records">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def test_a_page_has_every_token_once_with_its_record():
    run = make(tokens=8, n=2)
    fork = run.fork(3, token=101, n=1)
    told = {2: run.explain(2)}
    html = page(run, told, [small_llm().lens.layers(run, 4)])
    found = records(html)
    assert len(found) == 8 + 8 + len(fork.tokens) - 3  # a fork shares its first tokens with its parent
    for at, token in enumerate(run.tokens):
        piece, numbers, alternatives = found[str(at)]
        assert piece == quoted(token.piece) and dict(numbers)["model"] == percent(token.raw_logprob)
        assert [each[0] for each in alternatives] == [quoted(each.text) for each in token.alternatives]
    keys = [attributes["data-k"] for _, attributes in Seen(html).check().elements if "data-k" in attributes]
    assert set(keys) == set(found) and len(keys) == 24
    assert 'id="why-2"' in html and told[2].sentence.split(",")[0] in "".join(Seen(html).texts)
    assert html.count("data-shows=") == 3 and page(run, tree=False).count("data-shows=") == 0
    several = page(run, {at: run.explain(at) for at in range(8)})
    folds = [name for name, _ in Seen(several).elements if name == "details"]
    assert several.count('id="why-') == 8 == len(folds) - 1, "they are in one fold"


def test_a_page_allows_nothing_but_its_own_script_and_style():
    html = page(make())
    seen = Seen(html)
    (policy,) = [each["content"] for name, each in seen.elements if name == "meta" and "http-equiv" in each]
    data, script = seen.raw["script"]
    for kind, text in (("style", seen.raw["style"][0]), ("script", script)):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    assert json.loads(data) and len(seen.raw["script"]) == 2
    assert "://" not in html
    # Nor do parts that are made for notebooks bring styles of their own.
    run = make()
    with_comparison = page(run, extras=[diff(run, run.fork(1, token=101, n=1))])
    assert "differ" in with_comparison and " style=" not in with_comparison


def test_a_page_of_500_tokens_is_small(tmp_path):
    run = make(tokens=125, logprobs=20)
    run.tokens = [copy(token) for token in run.tokens * 4]  # the small model has no room for more
    for token in run.tokens:
        token.text, token._pieces = " photo", lambda id: f" photo{id}"
    run.save_html(tmp_path / "a.html")
    assert len(records((tmp_path / "a.html").read_text())) == 500
    assert 200_000 < (tmp_path / "a.html").stat().st_size < 500_000


@needs_chromium
def test_a_browser_shows_the_record_of_a_token_and_runs_no_hostile_text(tmp_path):
    run = hostile_run(HOSTILE)
    run.fork(2, token=101, n=1)
    run.save_html(tmp_path / "a.html", explanations={3: run.explain(3)})
    dom = shown(f"{(tmp_path / 'a.html').as_uri()}#3", tmp_path)
    panel = dom[dom.index("<aside") : dom.index("</aside>")]
    assert "&lt;/script&gt;&lt;!--" in panel
    assert percent(run.tokens[3].raw_logprob) in panel and "What else was likely" in panel
    assert " was the lik" in panel[: panel.index("<table")], "the reason comes first"
    assert 'aria-current="true"' in dom and 'aria-pressed="true"' in dom
    assert "<img" not in dom and "<b>" not in dom and dom.count("<script") == 2
