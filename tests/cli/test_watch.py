"""`glassloop watch` as a person uses it: keys and what is on the screen, with the real model."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from math import exp

import pytest
from cli.terminal import Session, run
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

from glassloop import LLM, Run, Sampling
from glassloop.cli.watch.app import WatchApp
from glassloop.cli.watch.keys import KEYS, hints
from glassloop.cli.watch.layout import cells_of, wrap
from glassloop.cli.watch.panels import bar
from glassloop.record.shares import shares

PROMPT = "The capital of France is"
# All that a terminal might take for more than text: an escape sequence, a bell, a return, a tab, C1, DEL.
STRANGE = r"日本語 (👩‍👩‍👧) é \x1b\[2J\x07\r\n\t<end> 한국어 \x7f\u009b text"


@pytest.fixture(scope="module")
def llm():
    with LLM() as made:
        yield made


@pytest.fixture
def recorded(llm):
    return llm.generate(PROMPT, Sampling(seed=3, temperature=0.8, top_p=0.9, max_tokens=24, logprobs=8))


def watched(app: WatchApp, person: Callable[[Pilot[None]], Awaitable[None]], size=(80, 24)) -> None:
    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await person(pilot)
        app.finish()

    asyncio.run(main())


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            await pilot.pause()
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"it did not come about; the screen is\n{screen(pilot)}")


def screen(pilot: Pilot[None]) -> str:
    """What is on the screen, line by line."""
    lines = pilot.app.screen._compositor.render_strips()
    assert len(lines) == pilot.app.size.height
    return "\n".join(strip.text for strip in lines)


def test_a_record_is_looked_at_token_by_token(llm, recorded):
    async def person(pilot):
        shown = screen(pilot)
        assert (
            PROMPT in shown
            and f"token 0 · {len(recorded.tokens)} tokens" in shown
            and recorded.id[:8] in shown
        )
        assert all(cell_len(line) == 80 for line in shown.split("\n"))
        for hint, word in hints():
            assert f"{hint} {word}" in shown
        await pilot.press("right", "right", "left", "right")
        assert app.at == 2 and "token 2 · 24 tokens" in screen(pilot)
        await until(pilot, lambda: "won" in screen(pilot) or "likeliest" in screen(pilot))
        shown = screen(pilot)
        assert "top_p" in shown and "mass kept" in shown
        # The sentence is the one that the engine gives.
        sentence = recorded.explain(2).sentence
        assert sentence.split(",")[0].split(" with")[0] in " ".join(shown.split())
        await pilot.press("end")
        assert app.at == len(recorded.tokens) - 1
        await pilot.press("right")
        assert app.at == len(recorded.tokens) - 1
        await pilot.press("home", "left")
        assert app.at == 0

    app = WatchApp(llm, recorded, store=False)
    watched(app, person)


def test_a_chat_is_shown_as_a_conversation(llm):
    run = llm.chat([{"role": "user", "content": "Say hi."}], Sampling(max_tokens=4, seed=1))

    async def person(pilot):
        shown = screen(pilot)
        assert "user: Say hi." in shown and "assistant: " in shown and "<|im_start|>" not in shown

    watched(WatchApp(llm, run, store=False), person)


def test_uncertain_tokens_are_found(llm, recorded):
    unsure = [at for at, token in enumerate(recorded.tokens) if token.raw_logprob < -0.6931471805599453]

    async def person(pilot):
        seen = [app.at] if app.at in unsure else []
        for _ in unsure:
            await pilot.press("n")
            seen += [app.at] if app.at not in seen else []
        assert seen == unsure
        await pilot.press("p")
        assert app.at == unsure[-2]

    app = WatchApp(llm, recorded, store=False)
    watched(app, person)


def test_enter_forks_with_the_alternative_and_both_stay(llm, recorded):
    async def person(pilot):
        await pilot.press("right", "right")
        await pilot.press("enter")  # the token of the run itself: no fork
        assert app.run_shown is recorded
        own = app.alternative
        await pilot.press("down" if own == 0 else "up")
        chosen = app._shares[app.alternative]
        assert chosen.id != recorded.tokens[2].id
        await pilot.press("enter")
        assert app.run_shown is not recorded
        await until(pilot, lambda: not app.live)
        fork = app.run_shown
        assert fork.token_ids[:3] == [*recorded.token_ids[:2], chosen.id]
        assert fork.tokens[2].source == "forced" and app.at == len(fork.tokens) - 1
        shown = screen(pilot)
        assert f"at 2 forced: {fork.id[:8]}" in shown and f"● {recorded.id[:8]}" in shown
        # The forced token is underlined, and a key leads to it.
        marked = {cell.token for cell in cells_of(fork, "", app.at) if "underline" in cell.style}
        assert marked == {2} and "forked at 2" in shown
        await pilot.press("f")
        assert app.at == 2
        await pilot.press("t")
        assert app.run_shown is recorded
        await pilot.press("f")  # not a fork: the token stays, and a notice says why
        assert app.at == 2 and "this run is not a fork" in [each.message for each in app._notifications]
        await pilot.press("T")
        assert app.run_shown is fork

    app = WatchApp(llm, recorded, store=False)
    watched(app, person)


def test_an_edit_replaces_from_the_token_on(llm, recorded):
    async def person(pilot):
        await pilot.press("right", "e")
        box = app.query_one("#edit", Input)
        assert box.display and box.has_focus
        await pilot.press("escape")
        assert not box.display and app.run_shown is recorded
        await pilot.press("e", *" quietq?")  # keys are text here
        await pilot.press("enter")
        await until(pilot, lambda: not app.live)
        assert app.run_shown.reason == "edited" and app.run_shown.fork_at == 1
        own = recorded.tokens[1].piece.startswith(" ")
        assert app.run_shown.text.startswith(recorded.tokens[0].text + " " * own + " quietq?")

    app = WatchApp(llm, recorded, changes={"max_tokens": 8}, store=False)
    watched(app, person)


def test_a_fork_that_cannot_be_says_why_and_leads_back(llm):
    made = llm.generate("Go", Sampling(seed=1, choice=["red", "green"]))

    async def person(pilot):
        await pilot.press("e", *"blue", "enter")
        await until(pilot, lambda: app.run_shown is made and not app.live and len(made.children) == 1)
        (said,) = [note.message for note in app._notifications]
        assert "choice cannot be used" in said

    app = WatchApp(llm, made, store=False)
    watched(app, person)


def test_a_live_run_streams_and_can_be_paused_and_stopped(llm):
    request = llm.prepare(PROMPT, Sampling(seed=1, max_tokens=3000, ignore_eos=True, logprobs=4))

    async def person(pilot):
        made = request.runs[0]
        await until(pilot, lambda: len(made.tokens) > 3)
        assert app.mode == "following" and "▶ live" in screen(pilot)
        await pilot.press("space")
        stood, came = app.at, len(made.tokens)
        await until(pilot, lambda: len(made.tokens) > came + 5)
        assert app.at == stood and app.mode == "still"
        await pilot.press("end")
        await until(pilot, lambda: app.at > stood + 5)
        await pilot.press("s")
        await until(pilot, lambda: not app.live)
        assert made.finish_reason == "cancelled" and "cancelled" in screen(pilot)

    app = WatchApp(llm, request.runs[0], request, store=False)
    watched(app, person)


def test_a_record_is_played_at_reading_speed_and_paused(llm, recorded):
    async def person(pilot):
        await pilot.press("space")
        assert app.mode == "playing"
        await until(pilot, lambda: app.at >= 3)
        await pilot.press("space")
        assert app.mode == "still"
        await pilot.press("end", "space")  # from the end it begins again
        await until(pilot, lambda: app.mode == "playing" and app.at < len(recorded.tokens) - 2)

    app = WatchApp(llm, recorded, store=False)
    watched(app, person)


def test_the_help_is_the_table_of_keys(llm, recorded):
    async def person(pilot):
        await pilot.press("question_mark")
        shown = screen(pilot)
        for key in KEYS:
            assert key.help in shown and key.shown in shown
        await pilot.press("x")
        assert len(app.screen_stack) == 1

    app = WatchApp(llm, recorded, store=False)
    watched(app, person)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 20)])
def test_strange_text_is_shown_and_never_obeyed(llm, size):
    made = llm.generate("Go\x1b[31m", Sampling(seed=1, regex=STRANGE, max_tokens=120))

    async def person(pilot):
        for at in range(0, len(made.tokens), 1 if size[0] == 60 else 6):
            app.go(at)
            await pilot.pause()
            shown = screen(pilot)
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
            assert all(cell_len(line) == size[0] for line in shown.split("\n"))
        app.go(0)
        await pilot.pause()
        shown = screen(pilot)
        for picture in (r"\x1b[31m", r"\x1b[2J\x07\x0d↵", "⇥<end>", r"\x7f\x9b", "日本語", "한국어", "👩"):
            assert picture in shown

    app = WatchApp(llm, made, store=False)
    watched(app, person, size)


def test_part_of_a_character_is_seen_where_it_is(llm):
    made = llm.generate("Go", Sampling(seed=1, regex="日本語", max_tokens=20))
    parts = [at for at, token in enumerate(made.tokens) if not token.text]
    assert parts
    text = "".join(cell.text for cell in cells_of(made, "", parts[0]))
    assert made.tokens[parts[0]].piece in text and "<0x" in text


def test_lines_fit_and_lose_nothing(recorded):
    for width in (2, 7, 20, 80):
        cells = list(cells_of(recorded, "日本 and 🙂 " * 5, 3))
        lines = wrap(iter(cells), width)
        assert [cell for line in lines for cell in line] == cells
        for line in lines:
            # A space may hang over the edge.
            assert sum(cell.width for cell in line) <= width or line[-1].text == " "


def test_bars_and_shares_are_wholes(recorded):
    for token in recorded.tokens:
        told = shares(token)
        assert told[-1].id is None and token.id in [share.id for share in told]
        assert sum(exp(share.logprob) for share in told) == pytest.approx(1)
        assert sum(exp(share.raw_logprob) for share in told) == pytest.approx(1)
    for share, ghost in ((0.0, 0.5), (1.0, 0.2), (0.3, 0.3), (1e-9, 0.0), (0.0, 0.0), (1.0, 1.0)):
        assert sum(len(text) for text, _ in bar(share, ghost, 17)) == 17


# ── the command ────────────────────────────────────────────────────────────────────────────────────────────


def test_on_a_real_terminal_it_starts_forks_and_quits(tmp_path):
    store = str(tmp_path / "runs.db")
    seen = Session("watch", PROMPT, "--temperature", "0", "-n", "8", GLASSLOOP_STORE=store)
    seen.wait_for(r"token \d+ · ")
    seen.wait_for("ended by")
    seen.type("\x1b[D")
    seen.type("\x1b[B")
    seen.type("\r")
    seen.wait_for("forced")
    seen.type("q")
    assert seen.end() == 0 and b"Traceback" not in seen.raw
    assert b"\x1b[?1049l" in seen.raw  # the screen from before is back
    kept = run("runs", "list", "--json", GLASSLOOP_STORE=store).stdout
    assert kept.count('"id"') == 2
    again = Session("watch", GLASSLOOP_STORE=store)
    again.wait_for("at . forced")
    again.type("\x03")
    assert again.end() == 0


def test_mistakes_are_one_line(tmp_path):
    piped = run("watch", PROMPT)
    assert piped.returncode == 2 and piped.stderr.count("\n") == 1 and "needs a terminal" in piped.stderr
    for what, said in (("gone.glass", "gone.glass"), ("last", "no run"), ("abcdef12", "no run")):
        seen = Session("watch", what, GLASSLOOP_STORE=str(tmp_path / "none.db"))
        assert seen.end() == 2 and said in seen.text and "Traceback" not in seen.text


def test_without_textual_it_says_what_to_install():
    code = (
        "import sys; from importlib.machinery import PathFinder as P; find = P.find_spec\n"
        "P.find_spec = lambda name, *rest: None if name == 'textual' else find(name, *rest)\n"
        "sys.argv = ['glassloop', 'watch', 'x']; from glassloop.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and done.stderr == (
        "glassloop: watch needs textual: pip install 'glassloop[tui]'\n"
    )


def test_a_file_is_watched_with_its_forks(llm, recorded, tmp_path):
    recorded.fork(2, token=" the")
    recorded.save(tmp_path / "a.glass", tree=True)
    loaded = Run.load(tmp_path / "a.glass", llm=llm)

    async def person(pilot):
        assert "at 2 forced" in screen(pilot)

    watched(WatchApp(llm, loaded, store=False), person)


def test_a_clock_or_a_worker_may_outlive_the_screen(llm, recorded):
    app = WatchApp(llm, recorded)

    async def person(pilot):
        await pilot.press("right")

    watched(app, person)
    app.draw()  # raises nothing
