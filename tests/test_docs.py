"""What the docs say about the repository is true: links and anchors lead somewhere, Python examples compile,
the commands and options of shell examples exist, every page is on the docs site, its search finds options."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from browser import needs_chromium, shown
from snippets import DOCS, FENCE, PAGES, ROOT, SHELL, blocks

from glassloop.cli.main import app

NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


def prose(page: Path) -> str:
    """Returns a page without its code."""
    return _CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))


@cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and the docs site make them."""
    made: set[str] = set()
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        made.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings_that_exist(name):
    page = ROOT / name
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name} links to {link}; there is no such heading"


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, "python")])
def test_python_examples_compile(name):
    for line, code in blocks(ROOT / name, "python"):
        try:
            compile(code, name, "exec")
        except SyntaxError as error:
            pytest.fail(f"{name}:{line + (error.lineno or 1) - 1}: {error.msg}")


COMMANDS = typer.main.get_command(app)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands(code: str) -> list[list[str]]:
    """Returns the words of each `glassloop` and `make` command of a shell example."""
    made = []
    for line in code.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*(\$ )?", "", line)
        line = re.sub(r"^([A-Z_]+=\S+ )+", "", line)
        if not re.match(r"(glassloop|make) ", line):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a text over several lines, or an ellipsis in quotes
            words = line.split("#")[0].split()
        for end in ("|", ">", "&&", ";", "&", "2>"):
            if end in words:
                words = words[: words.index(end)]
        made.append(words)
    return made


def check(words: list[str]) -> str | None:
    """Returns what is wrong with the names in a command, or None."""
    if words[0] == "make":
        target = next((word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)), None)
        return None if target is None or target in TARGETS else f"make has no target {target}"
    node: Any = COMMANDS
    for word in words[1:]:
        if node.context_settings.get("ignore_unknown_options"):
            return None  # it passes its options on to a program of its own
        if word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+(\.\d+)?", word):
            name = word.strip("[]").split("=")[0]
            known = {each for option in node.params for each in (*option.opts, *option.secondary_opts)}
            if name not in known | {"--help", "--version", "--"}:
                return f"{node.name} has no option {name}"
        elif hasattr(node, "commands"):
            found = node.commands.get(word)
            if found is None and re.fullmatch(r"[a-z]+(\|[a-z]+)*", word):
                missing = [each for each in word.split("|") if each not in node.commands]
                return f"there is no command {' '.join(missing)}" if missing else None
            if found is None:
                return None  # a placeholder
            node = found
    return None


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, *SHELL)])
def test_shell_examples_name_commands_and_options_that_exist(name):
    for line, code in blocks(ROOT / name, *SHELL):
        for words in commands(code):
            wrong = check(words)
            assert wrong is None, f"{name}:{line}: {wrong}, in {shlex.join(words)[:200]}"


def test_the_check_of_commands_finds_what_is_wrong():
    (right, wrong, other, target) = commands(
        "$ glassloop generate 'Hi' --seed 3 | less -R\nglassloop generate --sed 3\n"
        "glassloop nothing\nmake nothing"
    )
    assert check(right) is None
    assert check(wrong) == "generate has no option --sed"
    assert check(other) == "there is no command nothing"
    assert check(target) == "make has no target nothing"


def in_navigation() -> list[str]:
    written = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"([\w/-]+\.(?:md|ipynb))\s*$", written, re.MULTILINE)


def test_every_page_is_in_the_navigation_of_the_site():
    listed = in_navigation()
    pages = {page.relative_to(DOCS).as_posix() for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}


def test_pages_of_the_site_link_to_nothing_outside_it():
    above = {ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
    for page in DOCS.rglob("*.md"):
        for link in _LINK.findall(prose(page)):
            target = (page.parent / link.partition("#")[0]).resolve()
            assert target.is_relative_to(DOCS) or target in above, f"{page.name} links to {link}"


def test_the_reference_names_what_exists_and_everything_that_is_exported():
    import glassloop

    named = set()
    for page in (DOCS / "reference").glob("*.md"):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, name = path.rpartition(".")
            assert getattr(import_module(module), name).__doc__, f"{page.name}: {path} has no docstring"
            named.add(name)
    errors = {name for name in glassloop.__all__ if name.endswith("Error")}
    assert set(glassloop.__all__) - errors - {"DEFAULT_ORDER", "TakenBack"} <= named


def test_the_page_of_commands_is_what_the_parsers_have(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "assets")
    made = import_module("commands")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run: python docs/assets/commands.py"


QUERIES = {
    "--upstream": "+upstream*",
    "serve --upstream": "serve +upstream*",
    "--max-tokens": "+max* +tokens*",
    "--max-": "+max*",
    '"--upstream"': "+upstream*",
    "-n": "+n*",
    "a - b": "a  b",
    "log-probabilities": "log-probabilities",
}


@needs_chromium
def test_the_search_of_the_site_takes_a_word_that_begins_with_dashes_as_an_option(tmp_path):
    shutil.copy(DOCS / "assets" / "search.js", tmp_path)
    (tmp_path / "worker.js").write_text("addEventListener('message', ({ data }) => postMessage(data));")
    (tmp_path / "page.html").write_text(
        f"""<body><pre id="queries"></pre><script src="search.js"></script><script>
        const got = [], worker = new Worker('worker.js');
        worker.addEventListener('message', ({{ data }}) => {{
          got.push(data);
          document.getElementById('queries').textContent = JSON.stringify(got);
        }});
        worker.postMessage({{ type: 0, data: '--as it is' }});
        for (const data of {json.dumps(list(QUERIES))}) worker.postMessage({{ type: 2, data }});
        </script>"""
    )
    dom = shown((tmp_path / "page.html").as_uri(), tmp_path)
    first, *queries = json.loads(dom.partition('<pre id="queries">')[2].partition("</pre>")[0])
    assert first == {"type": 0, "data": "--as it is"}
    assert [each["data"] for each in queries] == list(QUERIES.values())


SITE = os.environ.get("GLASSLOOP_SITE")


@needs_chromium
@pytest.mark.skipif(not SITE, reason="GLASSLOOP_SITE names no folder with the docs site (make docs)")
@pytest.mark.parametrize(
    ("query", "page"),
    [("--upstream", "server.html"), ("--max-tokens", "evaluation.html"), ("temperature", "exercises.html")],
)
def test_the_search_of_the_built_site_finds_options(query, page, tmp_path):
    dom = shown(f"{Path(SITE).resolve().as_uri()}/index.html?q={query}", tmp_path)
    results = re.findall(r'<a href="([^"?#]*)[^"]*" class="md-search-result__link"', dom)
    assert f"{Path(SITE).resolve().as_uri()}/{page}" in results
