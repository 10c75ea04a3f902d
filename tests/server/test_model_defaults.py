"""Options that a client does not give come from the model's own sampling settings."""

from __future__ import annotations

import json

from .conftest import serving

BODIES = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 2},
    "/v1/responses": {"input": "Say hi.", "max_output_tokens": 2},
}


def test_options_that_a_client_does_not_give_come_from_the_model(llm):
    default = llm.default_sampling.temperature
    with serving("--kv-memory", "200MB", "--model-defaults") as server:
        options = {each["name"]: each["default"] for each in server.get("/api/info").json()["options"]}
        own = json.loads(json.dumps(llm.default_sampling.to_dict()))
        assert default == 0.5 and options | {"diffusion": None} == own
        for path, body in BODIES.items():
            for given, expected in (({}, default), ({"temperature": 1.0}, 1.0), ({"top_p": 0.9}, default)):
                made = server.post(path, {**body, **given, "seed": 3})
                run = server.get(f"/api/runs/{made.headers['x-glassloop-run']}").json()
                assert run["sampling"]["temperature"] == expected, (path, given)
                assert run["sampling"]["top_p"] == given.get("top_p", 1.0)
        ways = {"greedy": {"temperature": 0}, "beams": {"beam_width": 2}, "default": {}}
        strategies = [{"name": name, "sampling": options} for name, options in ways.items()]
        body = {"prompt": "Hi", "sampling": {"max_tokens": 2}, "strategies": strategies}
        begun = server.post("/api/runs", body).json()["runs"]
        assert [run["sampling"]["temperature"] for run in begun] == [0, 1, default]


def test_a_server_may_sample_plainly(server):
    """This server was started with --no-model-defaults."""
    options = {each["name"]: each["default"] for each in server.get("/api/info").json()["options"]}
    assert options["temperature"] == 1.0
    made = server.post("/v1/completions", BODIES["/v1/completions"])
    run = server.get(f"/api/runs/{made.headers['x-glassloop-run']}").json()
    assert run["sampling"]["temperature"] == 1.0
