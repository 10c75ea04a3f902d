"""Requests made up from the server's own document, most of them wrong: each is answered, none with a 500, all
errors are in OpenAI's shape and name the field, and nothing is left behind.
"""

from __future__ import annotations

from random import Random

from attacks.harness import Server, Watch, left_behind, standing
from attacks.limits import SEED, cases
from attacks.requests import Client, Requests, wrong
from attacks.routes import Document
from hostile.glass import mutated, renamed


def a_file(server: Server) -> tuple[str, bytes]:
    """A finished run and its `.glass` file."""
    answer = server.post("/api/runs", {"prompt": "the sea", "sampling": {"max_tokens": 6, "seed": 1}})
    run = answer.json()["runs"][0]["id"]
    server.settle()
    return run, server.get(f"/api/runs/{run}/export").body


def test_no_request_is_answered_with_a_500(tiny: Server) -> None:
    run, data = a_file(tiny)
    tree = tiny.get(f"/api/runs/{run}").json()["tree"]
    document = Document(tiny.get("/openapi.json").json())
    made = Requests(document, Random(SEED), lambda rng: mutated(renamed(data, rng), rng))
    client = Client(tiny.connect, 0.2)
    before, troubles = standing(tiny), []
    with Watch(tiny) as watch:
        for number in range(cases(1500)):
            case = made.next()
            answer = client.send(case.with_ids(run, tree))
            trouble = answer if isinstance(answer, str) else wrong(case, answer)
            if trouble:
                troubles.append(f"#{number} {trouble}\n    {case.told()}")
            if not tiny.alive or len(troubles) > 20:
                break
            if case.method == "DELETE" and not isinstance(answer, str) and answer.status == 204:
                run, data = a_file(tiny)
                tree = tiny.get(f"/api/runs/{run}").json()["tree"]
    client.close()
    assert not troubles, "\n".join([f"{len(troubles)} of {number + 1} requests:", *troubles])
    watch.report.check()
    left_behind(tiny, before)
