"""`glassloop watch` of a text that was written by diffusion: the scrubber over its passes, live and recorded.
The model is tiny: what is shown is the record."""

from __future__ import annotations

import pytest
from cli.terminal import on_terminal
from cli.test_watch import screen, until, watched
from diffuse.small import MaskedLLM
from engine.random_runs import PROMPT

from glassloop import Run, Sampling
from glassloop.cli.watch import player
from glassloop.cli.watch.keys import PASS_KEYS, hints
from glassloop.cli.watch.passes import WatchPasses
from glassloop.diffuse.write import by_diffusion

LETTERS = {"allowed_token_ids": [*range(97, 123)], "seed": 3}
OPTIONS = {"block": 6, "most": 2, "threshold": None, "revise": 1}


@pytest.fixture(scope="module")
def llm() -> MaskedLLM:
    return MaskedLLM()


@pytest.fixture(scope="module")
def recorded(llm) -> Run:
    return llm.diffuse(PROMPT, Sampling(max_tokens=12, **LETTERS), diffusion=OPTIONS)


def text_after(run: Run, number: int) -> str:
    """Returns what a text is after a pass, with `░` for a mask."""
    cells: dict[int, str] = {}
    for record in run.passes[: number + 1]:
        for at in range(record.first, record.first + record.width):
            cells.setdefault(at, "░")
        cells |= {each.at: "░" for each in record.unfilled}
        cells |= {each.at: chr(each.id) for each in record.filled}
    return "".join(cells[at] for at in sorted(cells))


def test_keys_move_over_the_passes_and_places(llm, recorded):
    async def person(pilot):
        app, count = pilot.app, len(recorded.passes)
        assert "pass 0 ·" in screen(pilot) and text_after(recorded, 0) in screen(pilot)
        for hint, word in hints(PASS_KEYS):
            assert f"{hint} {word}" in screen(pilot)
        for number in range(1, count):
            await pilot.press("right")
            assert app.at == number and f"{bytes(PROMPT).decode()}{text_after(recorded, number)}" in screen(
                pilot
            )
        await pilot.press("right", "left")
        assert app.at == count - 2
        await pilot.press("home")
        assert app.at == 0
        await pilot.press("r")
        back = next(record for record in recorded.passes if record.unfilled)
        assert app.at == back.number and back.unfilled[0].why in screen(pilot)
        await pilot.press("n")
        assert recorded.passes[app.at].first == 6 and recorded.passes[app.at - 1].first == 0
        await pilot.press("p", "end")
        assert app.at == count - 1 and f"{count} passes" in screen(pilot)
        place = app.place
        await pilot.press("up" if place > 6 else "down")
        assert abs(app.place - place) == 1 and app.at == count - 1
        await until(pilot, lambda: "In pass" in screen(pilot))
        await pilot.click("#scrubber", offset=(2, 0))
        assert app.at == 0
        await pilot.press("question_mark")
        assert "the next pass" in screen(pilot)

    watched(WatchPasses(llm, recorded), person)


def test_a_recorded_text_is_played_and_paused(llm, recorded, monkeypatch):
    monkeypatch.setattr(WatchPasses, "pace", 0.0)

    async def person(pilot):
        await pilot.press("space")
        await until(pilot, lambda: pilot.app.mode == "still")
        assert pilot.app.at == len(recorded.passes) - 1
        await pilot.press("space", "space")
        assert pilot.app.mode == "still" and pilot.app.at < len(recorded.passes) - 1

    watched(WatchPasses(llm, recorded), person)


def test_a_text_is_followed_while_it_is_written_and_stopped(llm, monkeypatch):
    kept: list[Run] = []
    monkeypatch.setattr(player, "keep", lambda runs: kept.extend(runs) or True)
    request = by_diffusion(llm, llm.prepare(PROMPT, Sampling(max_tokens=150, **LETTERS)), OPTIONS)
    run = request.runs[0]

    async def person(pilot):
        await until(pilot, lambda: len(run.passes) > 3 and pilot.app.at > 0)
        await pilot.press("s")
        await until(pilot, lambda: pilot.app.mode == "still" and bool(kept))
        assert run.finish_reason is not None and pilot.app.at == len(run.passes) - 1

    watched(WatchPasses(llm, run, request), person)
    assert kept == [run] and run.replay().identical
    again = by_diffusion(llm, llm.prepare(PROMPT, Sampling(max_tokens=150, **LETTERS)), OPTIONS)

    async def leaves(pilot):
        await until(pilot, lambda: len(again.runs[0].passes) > 2)

    watched(WatchPasses(llm, again.runs[0], again), leaves)
    llm.engine.call(llm.engine.loop.tree.check_integrity)
    assert again.ended and again.runs[0] in kept and llm.engine.loop.tree.held == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("A text", "--holes", "none.safetensors"), "--holes is for a text that is written by diffusion"),
        (("RECORDED", "--upstream", "http://127.0.0.1:1"), "--upstream is given; this run was written by"),
    ],
)
def test_flags_that_cannot_act_are_refused(arguments, expected, recorded, tmp_path):
    recorded.save(tmp_path / "run.glass")
    path = str(tmp_path / "run.glass")
    arguments = [path if each == "RECORDED" else each for each in arguments]
    code, text = on_terminal("watch", *arguments, columns=200)
    assert code == 2 and expected in text
