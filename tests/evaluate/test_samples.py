"""Methods computed from recorded samples are what the methods themselves do with the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glassloop import LLM, Sampling, Verdict
from glassloop.decode.luck import list_seed
from glassloop.errors import GlassloopError
from glassloop.evaluate.analyse import Playback, Samples
from glassloop.evaluate.evaluation import Evaluation, evaluate
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskItem
from glassloop.evaluate.figures import figures_of_samples
from glassloop.evaluate.method_spec import parse_method, parse_methods
from glassloop.evaluate.record import Record, RecordError, read
from glassloop.evaluate.samples import Plan, draw, pack, unpack
from glassloop.search.search import Paths, Search
from glassloop.search.solution import Path as Path_
from glassloop.search.solve import solve

OPTIONS = {"logit_bias": {10: 3.0, 259: 2.0}}
PLAN = Plan(True, 8, 1.5, 24, seed=5, options=tuple(OPTIONS.items()))


def last_letter(text: str) -> str | None:
    return text[-1:] or None


def is_lucky(text: str) -> Verdict:
    passed = sum(text.encode()) % 3 == 0
    return Verdict(passed, float(passed))


TASK = EvaluationTask(
    "letters",
    tuple(TaskItem(f"q{number}", f"question {number}", verify=is_lucky) for number in range(6)),
    last_letter,
    max_tokens=24,
    chat=False,
)


@pytest.fixture(scope="module")
def record(tiny: LLM, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("record") / "samples.jsonl"
    with Record(path, PLAN.header(TASK, tiny)) as opened:
        draw(tiny, TASK, range(6), PLAN, opened, lambda tokens: None)
    return path


@pytest.fixture(scope="module")
def samples(record: Path) -> Samples:
    return Samples.of(TASK, *read(record))


@pytest.mark.parametrize(
    "method",
    [
        "greedy",
        "vote:1",
        "vote:5",
        "vote:8",
        "vote:8,ties=first",
        "best:8",
        "best:6,width=2,stride=4",
        "likelihood:8",
        "likelihood:8,by=sum",
        "confidence:8,warmup=3,wave=2,window=4,stride=3,consensus=0.99",
        "confidence:8,warmup=4,wave=1,window=6,stride=5,keep=0.5,consensus=0.6",
        "confidence:8,warmup=4,wave=2,window=2,stride=1,keep=0.5,consensus=1",
    ],
)
def test_a_method_on_recorded_samples_does_what_it_does_on_the_engine(
    tiny: LLM, samples: Samples, method: str
) -> None:
    spec = parse_method(method)
    played = samples.outcomes(spec)
    sampling = Sampling(temperature=1.5, max_tokens=24, **OPTIONS)
    stopped = False
    for index, item in enumerate(TASK.items):
        chosen = replace(sampling, seed=list_seed(PLAN.seed, index))
        if spec.name == "greedy":
            chosen = replace(chosen, temperature=0, logit_bias={})
        real = solve(
            tiny,
            item.question,
            method=spec.name,
            sampling=chosen,
            extract=last_letter,
            verify=is_lucky,
            chat=False,
            **dict(spec.options),
        )
        mine = played[item.id]
        stopped |= any(path.ended_by == "search" for path in real.paths)
        assert (mine.tokens, mine.paths, mine.value) == (real.usage.tokens, len(real.paths), real.value)
        assert mine.correct == is_lucky(real.text).passed
    assert stopped or spec.name not in ("best", "confidence") or spec.text == "best:8"


SEEN: list[tuple[str, int]] = []


class Looking(Search):
    """Notes when it is told of its only path."""

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def start(self, paths: Paths) -> None:
        paths.start()

    def grown(self, paths: Paths, path: Path_) -> None:
        SEEN.append(("grown", len(path.run.tokens)))

    def ended(self, paths: Paths, path: Path_) -> None:
        SEEN.append(("ended", len(path.run.tokens)))


def test_a_path_that_ends_where_it_pauses_ends_in_the_same_round(tiny: LLM, samples: Samples) -> None:
    """The token that ends a text is not one of its tokens: it takes a round more. A limit takes none."""
    finishes = set()
    for index, item in enumerate(TASK.items):
        first = samples.samples[item.id][0]
        finishes.add(first.finish)
        seen = []
        for play in (True, False):
            SEEN.clear()
            if play:
                Playback([first]).play(Looking(first.tokens))
            else:
                chosen = Sampling(
                    temperature=1.5, max_tokens=24, logprobs=20, seed=list_seed(5, index), **OPTIONS
                )
                solve(tiny, item.question, method=Looking(first.tokens), sampling=chosen, chat=False)
            seen.append(list(SEEN))
        assert seen[0] == seen[1] != []
    assert finishes == {"stop", "length"}


def test_what_is_recorded_is_not_drawn_again_and_more_items_can_be_added(tiny: LLM, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    drawn: list[int] = []
    for limit, rows in ((2, 4), (2, 4), (4, 8)):
        with Record(path, PLAN.header(TASK, tiny)) as opened:
            draw(tiny, TASK, range(limit), PLAN, opened, drawn.append)
            assert len(opened.rows) == rows
    assert len(drawn) == 8
    with pytest.raises(RecordError, match="its seed is 5, and 6 is expected"):
        Record(path, replace(PLAN, seed=6).header(TASK, tiny))


def test_a_record_that_was_cut_off_goes_on_and_has_the_same_rows(
    tiny: LLM, record: Path, tmp_path: Path
) -> None:
    whole = record.read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    with Record(cut, PLAN.header(TASK, tiny)) as opened:
        draw(tiny, TASK, range(6), PLAN, opened, lambda tokens: None)

    def plain(path: Path) -> list[str]:
        rows = [{**row, "session": 0, "clock": 0} for row in read(path)[1]]
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    assert plain(cut) == plain(record)


def test_parts_that_processes_have_drawn_give_the_figures_of_the_whole(
    tiny: LLM, record: Path, tmp_path: Path
) -> None:
    parts = [tmp_path / f"part{number}.jsonl" for number in range(2)]
    for number, path in enumerate(parts):
        with Record(path, PLAN.header(TASK, tiny)) as opened:
            draw(tiny, TASK, range(6)[number::2], PLAN, opened, lambda tokens: None)
    methods = "greedy,vote:4,vote:8,any:8"
    found, expected = (figures_of_samples(TASK, paths, methods).json for paths in (parts, [record]))
    for one, other in zip(found, expected, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    with Record(tmp_path / "other.jsonl", replace(PLAN, seed=6).header(TASK, tiny)) as opened:
        draw(tiny, TASK, range(1), replace(PLAN, seed=6), opened, lambda tokens: None)
    with pytest.raises(RecordError, match="its seed is 6, and 5 is expected"):
        figures_of_samples(TASK, [*parts, tmp_path / "other.jsonl"], methods)


def test_two_processes_cannot_write_one_record(tiny: LLM, tmp_path: Path) -> None:
    with (
        Record(tmp_path / "r.jsonl", PLAN.header(TASK, tiny)),
        pytest.raises(RecordError, match="is being written by another process"),
    ):
        Record(tmp_path / "r.jsonl", PLAN.header(TASK, tiny))


def test_confidences_survive_packing() -> None:
    assert unpack(pack([0.5, 1.25, 3.0])).tolist() == [0.5, 1.25, 3.0]


def test_figures_have_a_row_for_each_method_and_a_test_for_each_pair(record: Path) -> None:
    figures = figures_of_samples(TASK, [record], "greedy,vote:4,vote:8,any:8", [record])
    rows = figures.json
    assert [row["method"] for row in rows][:4] == ["greedy", "vote:4", "vote:8", "any:8"]
    assert all(row["items"] == 6 and 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in rows)
    assert [len(row["compared"]) for row in rows] == [0, 1, 2, 3, 4]
    assert figures.svg.startswith("<svg") and "vote:8" in figures.svg
    assert "McNemar" in figures.text


def test_methods_that_were_run_are_compared_with_samples(tiny: LLM, record: Path, tmp_path: Path) -> None:
    other = tmp_path / "run.jsonl"
    wanted = {"temperature": 1.5, **OPTIONS}
    evaluate(tiny, Evaluation(TASK, "vote:8", sampling=wanted, seed=PLAN.seed, record=other))
    rows = figures_of_samples(TASK, [record], "vote:8", [other]).json
    assert rows[1]["method"].endswith(" vote:8")
    names = ("accuracy", "tokens", "items")
    assert [rows[0][name] for name in names] == [rows[1][name] for name in names]
    assert rows[1]["compared"][0]["p"] == 1 and rows[1]["compared"][0]["only_this"] == 0


@pytest.mark.parametrize("text", ["vote:0", "vote:x", "vote:8,n", ":8", "vote:8,=1"])
def test_a_method_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(GlassloopError, match="method"):
        parse_method(text)


def test_options_belong_to_the_method_before_them() -> None:
    found = parse_methods(["greedy,vote:8,confidence:16,keep=0.5,warmup=4", "best:4"])
    assert [spec.text for spec in found] == ["greedy", "vote:8", "confidence:16,keep=0.5,warmup=4", "best:4"]
    assert dict(found[2].options) == {"n": 16, "keep": 0.5, "warmup": 4}
