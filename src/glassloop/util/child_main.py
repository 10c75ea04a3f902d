"""The program of a child process: runs a script with an object that stands for the parent.

`Child` starts this file with the path of the script, whose function `serve(parent)` receives messages and
answers them. It imports only the standard library, so that a child starts quickly.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Any

_SIZE = struct.Struct("<I")  # of a message


class Parent:
    """The process that has started this one."""

    def __init__(self) -> None:
        self.answers = 1  # the file descriptor that answers are written to

    def receive(self) -> bytes:
        """Returns the next message. Ends this process if the parent has ended or closed the pipe."""
        return self._read(_SIZE.unpack(self._read(_SIZE.size))[0])

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(0, min(size - len(data), 1 << 20))
            if not chunk:
                os._exit(0)
            data += chunk
        return bytes(data)

    def send(self, data: bytes) -> None:
        rest = memoryview(_SIZE.pack(len(data)) + data)
        while rest:
            rest = rest[os.write(self.answers, rest) :]


def _main(path: str) -> None:
    space: dict[str, Any] = {"__name__": "__child__", "__file__": path}
    with open(path, "rb") as file:  # noqa: PTH123  (pathlib is one import more)
        exec(compile(file.read(), path, "exec"), space)
    space["serve"](Parent())


if __name__ == "__main__":
    _main(sys.argv[1])
