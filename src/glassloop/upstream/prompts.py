"""The log-probabilities of a prompt, which servers give by echoing it or by an extension of vLLM."""

from __future__ import annotations

from glassloop.record.messages import Message, text_of
from glassloop.record.token import Token
from glassloop.upstream.client import MOST_ANSWER, Client, UpstreamError
from glassloop.upstream.reading import ReportedToken, read_part, read_prompt_logprobs
from glassloop.upstream.vocabulary import Names

_PER_CHARACTER = 64  # bytes of an answer for each character of a prompt, and each alternative
_MOST_TOLD = 16 << 20  # bytes of such an answer


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
    part = read_part(await client.post("/completions", body, most=_most(len(text), count)))
    entries = _of_prompt(part.entries, text)
    if entries is None:
        raise UpstreamError("the upstream gives no log-probabilities of a prompt", field="prompt_logprobs")
    return _recorded([(entry, 0) for entry in entries])


async def read_chat_prompt(
    client: Client, model: str, messages: list[Message], count: int
) -> tuple[list[int], list[Token]]:
    """Returns the same for a conversation, by vLLM's extensions."""
    question = {"model": model, "messages": messages}
    tokenized = await client.post("/tokenize", question, above=True)
    scored = {**question, "max_tokens": 1, "temperature": 0, "prompt_logprobs": count}
    most = _most(sum(len(text_of(message)) for message in messages), count)
    answer = await client.post("/chat/completions", scored, most=most)
    return _recorded(read_prompt_logprobs(answer, tokenized))


def _most(characters: int, count: int) -> int:
    """Returns how many bytes an answer may have that tells `count` alternatives of each token of a prompt."""
    return min(_MOST_TOLD, MOST_ANSWER + _PER_CHARACTER * characters * (count + 1))


def _recorded(entries: list[tuple[ReportedToken, int]]) -> tuple[list[int], list[Token]]:
    names = Names()
    ids = [names.add(entry.piece, entry.data) for entry, _ in entries]
    tokens = [
        Token.told(
            id,
            entry.piece,
            entry.data,
            names,
            entry.logprob,
            [(names.add(each.piece, each.data), each.logprob) for each in entry.alternatives],
            rank=rank,
        )
        for id, (entry, rank) in zip(ids, entries, strict=True)
    ]
    return ids, tokens[1:]


def _of_prompt(entries: tuple[ReportedToken, ...], text: str) -> list[ReportedToken] | None:
    """Returns the tokens that the prompt consists of. A token for its beginning, which has no text, may be
    the first. None if the tokens do not begin with the prompt."""
    for skipped in (0, 1):
        length, kept = 0, list(entries[:skipped])
        for entry in entries[skipped:]:
            if length >= len(text):
                break
            length += len(entry.piece)
            kept.append(entry)
        if "".join([entry.piece for entry in kept[skipped:]]) == text and len(kept) < len(entries):
            return kept
    return None
