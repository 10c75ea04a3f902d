"""Forks of a run that another engine computed: its first tokens are sent as text, to be continued, where the
server can continue a text.
"""

from __future__ import annotations

from typing import Any

from glassloop.decode.luck import fork_salt
from glassloop.decode.sampling import Sampling
from glassloop.engine.branching import count_branches
from glassloop.errors import TextError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.upstream.client import UpstreamError
from glassloop.upstream.reading import PART
from glassloop.upstream.servers import ServerKind
from glassloop.upstream.vocabulary import Names
from glassloop.util.shown import shown


def fork_seed(run: Run, at: int, options: Sampling, is_same: bool) -> int:
    """Returns the seed that a fork sends, and counts its samples. If nothing else changes (`is_same`), it is
    the next one at this place."""
    position = len(run.prompt_ids) + at
    seed, branches = options.seed or 0, options.n if is_same else options.n - 1
    ordinal = count_branches(run, at, branches)
    return fork_salt(seed, position, ordinal) % (1 << 32) if is_same else seed


def forced_token(run: Run, at: int, token: int | str | None, text: str | None) -> Token:
    """Returns the token that a fork continues with. How likely it was is known where the upstream named it at
    this place."""
    names = Names.of(run)
    if text is not None:
        if not text:
            raise TextError.about("text", "is empty; at least one character is expected")
        data = text.encode("utf-8", "replace")
        return Token.told(names.add(text, data), data.decode(), data, names, None)
    here = run.tokens[at] if at < len(run.tokens) else None
    named = [] if here is None else [(each.id, each.text, each.raw_logprob) for each in here.alternatives]
    if here is not None:
        named.append((here.id, here.piece, here.raw_logprob))
    for id, piece, logprob in named:
        if token in (id, piece):
            if not piece or PART.search(piece):
                raise TextError.about("token", "is a part of a character, which cannot be sent as text")
            others = [(each, other_logprob) for each, _, other_logprob in named[:-1]]
            known_logprob = None if logprob != logprob else logprob
            return Token.told(id, piece, piece.encode(), names, known_logprob, others)
    raise TextError.about(
        "token", f"is {shown(token)}, which the upstream did not name at this place; text= takes any text"
    )


def continued_text(kind: ServerKind, run: Run) -> dict[str, Any]:
    """Returns the fields of a request for the rest of a run: its prompt or conversation, with the text of the
    tokens that it has. Raises if the server cannot continue from there."""
    last = run.tokens[-1] if run.tokens else None
    if last is not None and not last.text:
        raise UpstreamError(
            "the text before this token ends within a character or a chunk, so it cannot be sent to another"
            " engine; fork one token earlier or later",
            field="at",
        )
    text = "".join([token.text for token in run.tokens])
    if run.messages is None:
        return {"prompt": (run.prompt or "") + text}
    if not text:
        return {"messages": run.messages}
    messages = [*run.messages, {"role": "assistant", "content": text}]
    if kind.continues is not None:
        return {"messages": messages, **kind.continues}
    server = kind.name or "this upstream"
    raise UpstreamError(
        f"{server} is not known to continue an answer of a chat, so it cannot be forked or resumed after its"
        " first token; a text without messages can be",
        field="at",
    )
