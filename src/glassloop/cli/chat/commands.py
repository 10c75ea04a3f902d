"""What a line that begins with a slash does in a chat. The table of commands is data: `/help` shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.cli.chat.loop import Chat


class Command(NamedTuple):
    name: str
    takes: str
    help: str
    do: Callable[[Chat, str], None]


def run_command(chat: Chat, line: str) -> None:
    name, _, rest = line[1:].partition(" ")
    for command in COMMANDS:
        if command.name == name:
            return command.do(chat, rest.strip())
    from difflib import get_close_matches

    close = get_close_matches(name, [command.name for command in COMMANDS], n=1)
    hint = f"did you mean /{close[0]}?" if close else "/help shows what there is"
    raise GlassloopError(f"/{name} is no command; {hint}")


# ── looking ────────────────────────────────────────────────────────────────────────────────────────────────


def _why(chat: Chat, rest: str) -> None:
    from glassloop.cli.explain import print_reasons
    from glassloop.cli.terminal import quoted, visible, working

    talk = chat.talk
    place = talk.place(rest or None)
    with working("Asking"):
        told = talk.last.run.explain(place)
    print(f"token {place}, {quoted(talk.last.run.tokens[place].piece)}\n")
    print_reasons(told)
    print("\n" + visible(told.sentence))


def _alts(chat: Chat, rest: str) -> None:
    from glassloop.cli.terminal import percent, print_table, quoted
    from glassloop.trace.shares import shares

    place = chat.talk.place(rest or None)
    token = chat.talk.last.run.tokens[place]
    print(f"token {place}, {quoted(token.piece)}\n")
    rows: list[tuple[str, ...]] = []
    taken = None
    for number, share in enumerate(shares(token)):
        if share.id == token.id:
            taken = number
        text = f"all {'others' if rows else 'tokens'}" if share.text is None else quoted(share.text)
        own = "→" if share.id == token.id else ""
        rows.append((own, text, percent(share.raw_logprob), percent(share.logprob)))
    print_table(("", "token", "model", "after the stages"), rows, right=("model",), bold=taken)


def _tokens(chat: Chat, _: str) -> None:
    from glassloop.cli.terminal import percent, print_table, quoted

    tokens = chat.talk.last.run.tokens
    rows = [
        (str(number), quoted(token.piece), percent(token.raw_logprob), str(token.rank), token.source)
        for number, token in enumerate(tokens)
    ]
    print_table(("n", "token", "model", "rank", "source"), rows, right=("n", "model", "rank"))


def _tree(chat: Chat, _: str) -> None:
    from glassloop.cli.chat.drawing import draw
    from glassloop.cli.terminal import visible

    print(visible(draw(chat.talk)))


def _show(chat: Chat, _: str) -> None:
    from glassloop.cli.terminal import visible

    talk, plain = chat.talk, Sampling().to_dict()
    changed = {name: value for name, value in talk.sampling.to_dict().items() if value != plain[name]}
    print(f"model    {visible(talk.llm.name)}, {talk.llm.op_set}")
    if talk.system is not None:
        print(f"system   {visible(talk.system, newlines=False)}")
    print(f"options  {visible(', '.join(f'{name}={value}' for name, value in changed.items()))}")
    if talk.at is not None:
        usage = talk.at.run.usage
        print(f"history  {len(talk.at.path)} questions, {usage.total_tokens} tokens,", end=" ")
        print(f"room for {usage.context_left} more")


# ── going elsewhere ────────────────────────────────────────────────────────────────────────────────────────


def _fork(chat: Chat, rest: str) -> None:
    name, token = _two(rest)
    if not name:
        raise GlassloopError("/fork wants a token of the last answer, and what comes there instead")
    talk = chat.talk
    place = talk.place(name)
    chosen = talk.named_token(place, token) if token else {}
    chat.answer(talk.last.question, talk.fork(place, **chosen), beside=talk.last)


def _rewind(chat: Chat, rest: str) -> None:
    from glassloop.cli.terminal import visible

    talk = chat.talk
    if rest:
        turn = talk.rewind(talk.place(rest))
        chat.keep(turn.run)
        print(f"{visible(turn.run.text)}▏\n")
        chat.note(f"{len(turn.run.tokens)} tokens kept · /tree shows both")
    else:
        question, talk.at = talk.last.question, talk.last.above
        chat.note(f"before “{visible(question, newlines=False)}” · /tree shows what came of it")


def _go(chat: Chat, rest: str) -> None:
    from glassloop.cli.terminal import visible

    turn = chat.talk.go(rest)
    print(f"› {visible(turn.question)}\n{visible(turn.run.text)}")


def _new(chat: Chat, _: str) -> None:
    chat.talk.at = None
    chat.note("a new conversation · /tree shows the old one")


# ── the rest ───────────────────────────────────────────────────────────────────────────────────────────────


def _set(chat: Chat, rest: str) -> None:
    name, value = _two(rest)
    if not name:
        return _show(chat, "")
    name = name.replace("-", "_")
    options = chat.talk.sampling.to_dict()
    if value:
        options[name] = _value(name, value)
        chat.talk.sampling = chat.talk.check(Sampling.from_dict(options))
    elif name not in options:
        Sampling.from_dict({name: None})  # which says that there is no such option
    told = next(field.metadata["help"] for field in fields(Sampling) if field.name == name)
    chat.note(f"{name} = {chat.talk.sampling.to_dict()[name]} · {told}")
    return None


def _save(chat: Chat, rest: str) -> None:
    from pathlib import Path

    from glassloop.cli.chat.drawing import transcript
    from glassloop.trace.file import write

    if not rest:
        raise GlassloopError("/save wants a file: .glass for every answer with its record, .json, or .md")
    path, talk = Path(rest).expanduser(), chat.talk
    own = [turn.run for turn in talk.last.path]
    if path.suffix == ".glass":
        others = [turn.run for turn in talk if turn.run not in own]
        write(path, [own[-1], *own[:-1], *others])
        return chat.note(f"{path}: {len(own) + len(others)} runs")
    if path.suffix == ".json":
        whole = {"model": talk.llm.name, "messages": talk.messages, "options": talk.sampling.to_dict()}
        text = json.dumps({**whole, "runs": [run.id for run in own]}, indent=2, ensure_ascii=False) + "\n"
    else:
        text = transcript(talk)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GlassloopError(f"cannot write {path}: {error.strerror or error}") from error
    return chat.note(f"{path}: {len(own)} questions and answers")


def _help(chat: Chat, _: str) -> None:
    width = max(len(f"/{command.name} {command.takes}") for command in COMMANDS)
    for command in COMMANDS:
        print(f"{f'/{command.name} {command.takes}':{width}}  {command.help}")
    print('\nA line that ends in \\ goes on; """ opens and closes a message of many lines;')
    print("// begins a message with a slash. Ctrl-C stops an answer, Ctrl-D ends the chat.")


def _quit(chat: Chat, _: str) -> None:
    chat.over = True


COMMANDS = (
    Command("why", "[n]", "why token n was chosen: the stages, the race, the sentence", _why),
    Command("alts", "[n]", "what else was likely there", _alts),
    Command("tokens", "", "the last answer, token by token, with their numbers", _tokens),
    Command("fork", "n [token]", "another answer, with this token at n, or with new luck", _fork),
    Command("rewind", "[n]", "keep n tokens of the answer; without n, ask something else", _rewind),
    Command("tree", "", "every question and answer", _tree),
    Command("go", "run", "go on from another answer of the tree", _go),
    Command("set", "option value", "how tokens are chosen from now on: /set temperature 0.3", _set),
    Command("show", "", "the model, the options, how much room is left", _show),
    Command("save", "file", ".glass with the records, .json, or .md to read", _save),
    Command("new", "", "begin a new conversation", _new),
    Command("help", "", "this", _help),
    Command("quit", "", "end", _quit),
)


def _two(rest: str) -> tuple[str, str]:
    """The first word, or what is in quotes, and all that follows."""
    if rest[:1] in ('"', "'") and (end := rest.find(rest[0], 1)) > 0:
        return rest[: end + 1], rest[end + 1 :].strip()
    first, _, second = rest.partition(" ")
    return first, second.strip()


def _value(name: str, text: str) -> Any:
    """JSON, or the text itself. An option that is text is never read as anything else."""
    kinds = {field.name: field.metadata["kind"] for field in fields(Sampling)}
    low = text.lower()
    if low in ("none", "null", "off") and kinds.get(name) != "flag":
        return Sampling().to_dict().get(name)
    if kinds.get(name) == "text":
        return text
    if kinds.get(name) == "flag":
        return {"true": True, "on": True, "false": False, "off": False}.get(low, text)
    try:
        return json.loads(text)
    except ValueError:
        return text
