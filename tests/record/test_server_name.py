"""The names of servers: each running server has one of its own, and a name is free when its process ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from glassloop.errors import TraceError
from glassloop.record.store.server_name import ServerName

ADDRESS = "127.0.0.1:8000"
HOLD = """
import sys, time
from pathlib import Path
from glassloop.record.store.server_name import ServerName
held = ServerName(Path(sys.argv[1]), sys.argv[2])
print(held.name, flush=True)
time.sleep(600)
"""


def test_a_name_is_held_until_its_process_ends(tmp_path):
    store = tmp_path / "new" / "runs.db"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store), ADDRESS], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().strip() == ADDRESS
    other = ServerName(store, ADDRESS)
    assert other.name.startswith(f"{ADDRESS}#") and other.is_running(ADDRESS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not other.is_running(ADDRESS)
    again = ServerName(store, ADDRESS)
    assert again.name == ADDRESS and other.is_running(ADDRESS) and again.is_running(other.name)
    other.release()
    assert not again.is_running(other.name) and len(list((tmp_path / "new").rglob("*.lock"))) == 1


def test_servers_at_any_port_have_names_of_their_own(tmp_path):
    names = [ServerName(tmp_path / "runs.db", None) for _ in range(3)]
    assert len({each.name for each in names}) == 3
    assert not names[0].is_running(names[0].name) and names[0].is_running(names[1].name)
    killed = names.pop()
    killed._lock.release()
    assert not names[0].is_running(killed.name) and len(list(tmp_path.rglob("*.lock"))) == 2
    assert not names[0].is_running("never there\x00") and not names[0].is_running("../" * 50)


def test_servers_of_a_store_share_a_key(tmp_path):
    keys = {ServerName(tmp_path / "a.db", None).shared_key() for _ in range(3)}
    (key,) = keys
    assert len(key) == 32 and key != ServerName(tmp_path / "b.db", None).shared_key()
    assert not list((tmp_path / "a.db.servers").glob("*.key"))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot use the store"):
        ServerName(tmp_path / "file" / "runs.db", ADDRESS)
