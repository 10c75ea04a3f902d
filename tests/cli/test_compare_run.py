"""`compare RUN`: the prompt of a recorded run in other ways; and prompts that are the name of something."""

from __future__ import annotations

import json

from cli.terminal import run

from glassloop import Store


def test_the_prompt_of_a_run_is_decoded_with_its_options_and_luck(tmp_path):
    store, file = str(tmp_path / "runs.db"), str(tmp_path / "second.glass")
    environment = {"GLASSLOOP_STORE": store}
    options = ("--samples", "2", "--temperature", "1.1", "--seed", "3", "-n", "8", "--system", "Be brief.")
    assert run("generate", "Say hi.", *options, **environment).returncode == 0
    second = next(each for each in Store(store).get("last").tree() if each.sample == 1)
    second.save(file)
    for name in (second.id, f"chatcmpl-{second.id}", file):
        count = len(Store(store))
        asked = ("compare", name, "--with", "default", "--with", "temperature=0.3", "--json")
        recorded, same, other = json.loads(run(*asked, **environment).stdout)
        assert (recorded["run"], recorded["with"]) == (second.id, f"run {second.id[:8]}")
        # The second sample has luck of its own, which is used again.
        assert same["text"] == second.text and same["parts"]["same"] and same["seed"] == 3
        assert other["sampling"] == second.sampling.to_dict() | {"n": 1, "temperature": 0.3, "seed": 3}
        assert Store(store).get(same["run"]).messages == second.messages
        assert len(Store(store)) == count + 2  # the run itself is there already
    text = run("compare", second.id, "--with", "temperature=0.3", "--no-store", **environment).stdout
    assert f"── run {second.id[:8]} ──\n{second.text}" in text
    for flags, says in (
        (["--chat"], "--chat is given with a run"),
        (["--system", "x"], "--system is given with a run"),
        (["--no-model-defaults"], "--no-model-defaults is given with a run"),
    ):
        refused = run("compare", second.id, *flags, "--with", "greedy", **environment)
        assert refused.returncode == 2 and says in refused.stderr and refused.stderr.count("\n") == 1
    assert "there is no run" in run("compare", "0" * 16, "--with", "greedy", **environment).stderr


def test_a_prompt_that_is_a_name_is_continued_with_a_notice(tmp_path):
    environment, file = {"GLASSLOOP_STORE": str(tmp_path / "runs.db")}, tmp_path / "notes.txt"
    few = ("-n", "1", "--seed", "1")
    file.write_text("The sea is")
    told = run("generate", str(file), *few, **environment)
    assert told.returncode == 0 and "is the name of a file, and is continued as a text" in told.stderr
    assert "is the name of a run" in run("generate", "last", *few, **environment).stderr
    assert (
        "is the name of a file" in run("compare", str(file), "--with", "greedy", *few, **environment).stderr
    )
    for quiet in (
        ("generate", "The sea is", *few),
        ("generate", "12345678", *few),  # no such run
        ("compare", "last", "--text", "--with", "greedy", *few),
    ):
        assert "is the name of" not in run(*quiet, **environment).stderr
