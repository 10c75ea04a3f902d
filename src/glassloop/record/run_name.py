"""Names of runs: what a person or a program may write where a run is meant.

A run has an id of 16 hexadecimal digits. The server's answers have it behind a prefix, in OpenAI's manner, so
the id of an answer that is in the log of an application names its run.
"""

from __future__ import annotations

import re

CHAT, COMPLETION, RESPONSE, MESSAGE = "chatcmpl-", "cmpl-", "resp_", "msg_"
_ANSWER = re.compile("|".join((CHAT, COMPLETION, RESPONSE, MESSAGE)))
_ID = re.compile(r"[0-9a-f]{8,16}")


def run_id(name: str) -> str:
    """Returns the id of a run, or the beginning of it, that a name gives: the id itself, which is also the id
    of the request, or the id of an answer, such as chatcmpl-d3c160096f7b279e. Other names are returned as
    they are."""
    prefix = _ANSWER.match(name)
    return name if prefix is None else name[prefix.end() :]


def is_run_name(text: str) -> bool:
    """Returns whether a text can only be meant as a run of the store: "last", an id or at least 8 digits of
    one, or the id of an answer."""
    return text == "last" or _ID.fullmatch(run_id(text)) is not None
