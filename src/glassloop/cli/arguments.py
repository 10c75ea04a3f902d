"""What the text of an argument stands for: itself, stdin, a file, or a JSON value."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from glassloop.errors import TextError


def read_text(text: str) -> str:
    """Returns the text of an argument; '-' stands for stdin."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TextError(f"stdin is not UTF-8 text: byte {error.start} is 0x{byte:02X}") from None


def json_or_text(value: str) -> Any:
    """Returns the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        return False
