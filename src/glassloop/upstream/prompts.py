"""The log-probabilities of a prompt, which servers give by echoing it."""

from __future__ import annotations

from glassloop.trace.token import Token
from glassloop.upstream.client import Client, UpstreamError
from glassloop.upstream.reading import Entry, read_part
from glassloop.upstream.vocabulary import Names


async def read_prompt(client: Client, model: str, text: str, count: int) -> tuple[list[int], list[Token]]:
    """Returns the ids of the tokens of a prompt, and the records of all but the first. Raises if the server
    does not give them."""
    body = {
        "model": model,
        "prompt": text,
        "max_tokens": 1,
        "echo": True,
        "logprobs": count,
        "temperature": 0,
    }
    part = read_part(await client.post("/completions", body))
    entries = _of_prompt(part.entries, text)
    if entries is None:
        raise UpstreamError("the upstream gives no log-probabilities of a prompt", field="prompt_logprobs")
    names = Names()
    ids = [names.add(entry.piece, entry.data) for entry in entries]
    tokens = [
        Token.told(
            id,
            entry.piece,
            entry.data,
            names,
            entry.logprob,
            [(names.add(each.piece, each.data), each.logprob) for each in entry.alternatives],
        )
        for id, entry in zip(ids, entries, strict=True)
    ]
    return ids, tokens[1:]


def _of_prompt(entries: tuple[Entry, ...], text: str) -> list[Entry] | None:
    """Returns the tokens that the prompt consists of. A token for its beginning, which has no text, may be
    the first. None if the tokens do not begin with the prompt."""
    for skipped in (0, 1):
        length, made = 0, list(entries[:skipped])
        for entry in entries[skipped:]:
            if length >= len(text):
                break
            length += len(entry.piece)
            made.append(entry)
        if "".join([entry.piece for entry in made[skipped:]]) == text and len(made) < len(entries):
            return made
    return None
