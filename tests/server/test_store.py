"""What a server with a store leaves behind, even when it is killed in the middle."""

from __future__ import annotations

import signal

import httpx2 as httpx

from .conftest import serving


def test_runs_outlive_a_server_that_is_killed(tmp_path):
    flags = ("--store", str(tmp_path / "runs.db"), "--kv-memory", "200MB")
    body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with serving(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        done = server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 4, "seed": 1})
        finished = done.headers["x-glassloop-run"]
        streams = [
            client.send(client.build_request("POST", "/v1/completions", json=body), stream=True)
            for _ in range(20)
        ]
        open_ends = [stream.headers["x-glassloop-run"] for stream in streams]
        server.post("/v1/completions", {"prompt": "Later", "max_tokens": 20})
        server.end(signal.SIGKILL)
    with serving(*flags) as server:
        run = server.get(f"/api/runs/{finished}").json()
        assert run["status"] == "done" and run["text"] == done.json()["choices"][0]["text"]
        assert server.get(f"/api/runs/{finished}/explain/2").json()["same"]
        for id in open_ends:
            left = server.get(f"/api/runs/{id}").json()
            assert left["status"] == "paused" and "interrupted" in left["stop_reason"]
        assert {finished, *open_ends} <= {each["id"] for each in server.get("/api/runs").json()["runs"]}
        stepped = server.post(f"/api/runs/{open_ends[0]}/step", {"tokens": 2})
        assert stepped.status_code == 200
        assert server.end() == 0
