"""Asks a server's `/health` ten times a second, or with a key for a completion of one token, in a process of
its own, so that a busy attacker does not count as a slow server: `python probe.py HOST PORT [KEY]`. Prints a
line with the seconds and the status of each answer, or with an error, until its standard input is closed.
"""

from __future__ import annotations

import http.client
import select
import sys
import time


def ask(connection: http.client.HTTPConnection, key: str | None, number: int) -> None:
    if key is None:
        connection.request("GET", "/health")
        return
    body = f'{{"prompt": "{number} seas", "max_tokens": 1}}'
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request("POST", "/v1/completions", body, headers)


def main(host: str, port: int, key: str | None = None) -> None:
    number = 0
    while True:
        before, number = time.monotonic(), number + 1
        try:
            connection = http.client.HTTPConnection(host, port, timeout=120)
            ask(connection, key, number)
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
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
