"""A server with the default model for clients that are installed in an environment of their own, in which
there is no Glassloop: `make test-peers`. Without it the tests are left out; where a client is not installed,
its tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm would fetch a list of prices

PYTHON = "GLASSLOOP_PYTHON"  # the interpreter of an environment with Glassloop
collect_ignore_glob = [] if PYTHON in os.environ else ["test_*.py"]
MODEL = "smollm2-135m-instruct"
SITE = "http://localhost:3000"  # the page of a client that runs in a browser


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of the server, without `/v1`."""
    python = os.environ[PYTHON]
    process = subprocess.Popen(
        [python, "-m", "glassloop", "serve", "--port", "0", "--kv-memory", "1GB", "--allow-origin", SITE],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = process.stderr.readline()
        found = re.search(r"http://[\d.]+:\d+", first)
        assert found, first + process.stderr.read()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[0]
    finally:
        process.kill()
        process.wait(60)


@pytest.fixture(scope="session")
def base(url: str) -> str:
    return f"{url}/v1"
