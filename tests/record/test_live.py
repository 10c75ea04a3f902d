"""The live view of a run in a notebook: a click on an alternative makes a fork in Python."""

from __future__ import annotations

import json
import sys
from html import unescape

import pytest
from browser import needs_chromium, shown
from engine.random_runs import PROMPT, small_llm

from glassloop import GlassloopError, Run, Sampling
from glassloop.record.views.live import SCRIPT, LiveRun
from glassloop.util.plain_text import quoted


def make() -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=6, ignore_eos=True, logprobs=5))


def click(run: Run, at: int) -> dict:
    """Returns the message of a click on the second alternative of a token."""
    return {"fork": {"at": at, "token": run.tokens[at].alternatives[1].id}}


def test_a_click_is_a_fork_of_the_run_that_is_shown():
    run = make()
    live = LiveRun(run, Run.fork)
    first = live.fork(click(run, 2))
    assert first.parent == run.id and first.fork_at == 2 and first in run.children
    assert first.tokens[2].id == run.tokens[2].alternatives[1].id and first.tokens[2].source == "forced"
    second = live.fork(click(first, 4))
    assert second.parent == first.id and live.history == [run, first, second] and live.run is second
    assert f"{len(second.tokens)} tokens" in live.html and live.html.count("data-k=") == len(second.tokens)
    assert json.loads(live.records)["4"][0] == quoted(second.tokens[4].piece)
    assert live.back() is first and live.back() is run and live.back() is run


@pytest.mark.parametrize(
    "message",
    [
        *(None, [], "fork", {}, {"fork": None}, {"fork": {"at": 1}}, {"fork": {"at": "1", "token": 5}}),
        *(
            {"fork": {"at": 6, "token": 5}},
            {"fork": {"at": -1, "token": 5}},
            {"fork": {"at": 1, "token": 1e9}},
        ),
        *({"fork": {"at": True, "token": 5}}, {"fork": {"at": 1, "token": 1 << 40}}),
    ],
)
def test_other_messages_are_refused_and_change_nothing(message):
    live = LiveRun(make(), Run.fork)
    with pytest.raises(GlassloopError, match=r"fork is|token"):
        live.fork(message)
    assert len(live.history) == 1


def test_the_widget_forks_and_reports_errors():
    pytest.importorskip("anywidget", reason="anywidget is not installed (pip install 'glassloop[notebook]')")
    run, told = make(), []
    widget = run.live(told.append)
    assert (
        widget.html == LiveRun(run, Run.fork).html
        and widget.run is run
        and "<script" not in widget._repr_html_()
    )
    widget._handle_custom_msg(click(run, 2), [])
    assert [widget.run] == told and widget.run.parent == run.id and not widget.busy and widget.error == ""
    assert widget.html == LiveRun(told[0], Run.fork).html and json.loads(widget.records)
    widget._handle_custom_msg({"fork": {"at": 99, "token": 1}}, [])
    assert "a place from 0 to 5" in widget.error and widget.run is told[0] and not widget.busy
    assert widget.back() is run and widget.html == LiveRun(run, Run.fork).html


def test_without_anywidget_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(GlassloopError, match=r"pip install 'glassloop\[notebook\]'"):
        make().live()


# A stand-in for the side of the notebook, with the policy of VS Code. It clicks on token 2 and on the second
# alternative there.
HARNESS = """<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'">
<div id="el"></div><pre id="said"></pre>
<script type="application/json" id="state">STATE</script>
<script type="module">
const state = JSON.parse(document.getElementById("state").textContent);
const sent = [];
const model = { get: (name) => state[name], set: (name, value) => { state[name] = value; }, save_changes() {},
  on() {}, send: (message) => sent.push(message) };
const module = URL.createObjectURL(new Blob([state.script], { type: "text/javascript" }));
const { default: widget } = await import(module);
const el = document.getElementById("el");
widget.render({ model, el });
el.querySelectorAll("[data-k]")[2].click();
const buttons = el.querySelectorAll("table button");
buttons[1].click();
const said = { sent, selected: state.selected, buttons: [...buttons].map((each) => each.textContent) };
document.getElementById("said").textContent = JSON.stringify(said);
</script>"""


@needs_chromium
def test_a_click_in_a_browser_sends_the_message(tmp_path):
    run = make()
    live = LiveRun(run, Run.fork)
    state = {"html": live.html, "records": live.records, "busy": False, "error": ""}
    written = json.dumps(state | {"script": SCRIPT.read_text()}).replace("<", "\\u003c")
    (tmp_path / "a.html").write_text(HARNESS.replace("STATE", written))
    dom = shown((tmp_path / "a.html").as_uri(), tmp_path)
    said = json.loads(unescape(dom.split('<pre id="said">')[1].split("</pre>")[0]))
    assert said["sent"] == [click(run, 2)] and said["selected"] == 2
    assert said["buttons"] == [quoted(each.text) for each in run.tokens[2].alternatives]
