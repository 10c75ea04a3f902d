"""The receipt of a server's run is true for the model in another process."""

from __future__ import annotations

from glassloop import Run, verify
from glassloop.record.format.glass_file import from_bytes
from glassloop.record.receipt import receipt_from


def test_receipt_of_a_servers_run_is_true_elsewhere(server, llm):
    body = {"prompt": "The capital of France is", "max_tokens": 8, "seed": 5, "temperature": 0.8}
    id = server.post("/v1/completions", body).json()["id"]
    plain = server.get(f"/api/runs/{id}/receipt").json()
    run = from_bytes(server.get(f"/api/runs/{id}/export").content)[0]
    assert "content" not in plain and plain["signature"] is None  # this server has no key
    verdict = verify(receipt_from(plain), llm, run=run)
    assert verdict.identical, verdict.sentence
    whole = receipt_from(server.get(f"/api/runs/{id}/receipt?with_text=true").json(), Run)
    assert verify(whole, llm)
