"""Asks a server's `/health` ten times a second, in a process of its own, so that a busy attacker does not
count as a slow server: `python probe.py HOST PORT`. Prints a line with the seconds and the status of each
answer, or with an error, until its standard input is closed.
"""

from __future__ import annotations

import http.client
import select
import sys
import time


def main(host: str, port: int) -> None:
    while True:
        before = time.monotonic()
        try:
            connection = http.client.HTTPConnection(host, port, timeout=120)
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            connection.close()
            told = str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            told = repr(error)
        print(f"{time.monotonic() - before:.4f} {told}", flush=True)
        if select.select([sys.stdin], [], [], 0.1)[0]:
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
