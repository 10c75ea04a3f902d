"""The commands of a chat: lines that begin with a slash. `/help` prints the table of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from glassloop.cli.arguments import json_or_text
from glassloop.cli.chat.session import ChatSession
from glassloop.cli.naming import number_in
from glassloop.cli.sampling_flags import stage_options_of
from glassloop.cli.sampling_text import options_line
from glassloop.cli.terminal import percent, print_table, quoted, visible, working, wrapped
from glassloop.cli.tokens import luck_text, surprise_text
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError
from glassloop.util.files import write_text
from glassloop.util.plain_text import known


class Command(NamedTuple):
    name: str
    takes: str
    help: str
    do: Callable[[ChatSession, str], None]


def run_command(chat: ChatSession, line: str) -> None:
    name, _, rest = line[1:].partition(" ")
    for command in COMMANDS:
        if command.name == name:
            return command.do(chat, rest.strip())
    from difflib import get_close_matches

    close = get_close_matches(name, [command.name for command in COMMANDS], n=1)
    hint = f"did you mean /{close[0]}?" if close else "/help lists all commands"
    raise GlassloopError(f"/{name} is not a command; {hint}")


# ── looking at an answer ───────────────────────────────────────────────────────────────────────────────────


def _why(chat: ChatSession, rest: str) -> None:
    from glassloop.cli.explain import print_reasons

    talk = chat.talk
    place = talk.place(rest or None)
    with working("Explaining"):
        explanation = talk.last.run.explain(place)
    print(f"token {place}, {quoted(talk.last.run.tokens[place].piece)}\n")
    print_reasons(explanation)


def _alts(chat: ChatSession, rest: str) -> None:
    from glassloop.record.shares import shares

    place = chat.talk.place(rest or None)
    token = chat.talk.last.run.tokens[place]
    print(f"token {place}, {quoted(token.piece)}\n")
    token_shares = shares(token)
    rows = [
        (
            "→" if share.id == token.id else "",
            "all others" if share.text is None else quoted(share.text),
            percent(share.raw_logprob),
            percent(share.logprob),
        )
        for share in token_shares
    ]
    chosen = [share.id for share in token_shares].index(token.id)
    print_table(("", "token", "model", "after stages"), rows, right=("model", "after stages"), bold=chosen)


def _tokens(chat: ChatSession, _: str) -> None:
    tokens = chat.talk.last.run.tokens
    rows = [
        (
            str(number),
            quoted(token.piece),
            percent(token.raw_logprob),
            str(token.rank or "?"),
            surprise_text(token),
            luck_text(token),
            token.source,
        )
        for number, token in enumerate(tokens)
    ]
    numbers = ("model", "rank", "surprise", "luck")
    print_table(("n", "token", *numbers, "source"), rows, right=("n", *numbers), cut=("token",))


def _worst(chat: ChatSession, rest: str) -> None:
    from glassloop.cli.worst import MOST_SHOWN, print_worst

    count = number_in(rest) if rest else MOST_SHOWN
    if count is None or count < 1:
        raise GlassloopError(f"count is {rest!r}; a number of tokens from 1 up is expected")
    print_worst(chat.talk.last.run.tokens, count)


def _tree(chat: ChatSession, _: str) -> None:
    from glassloop.cli.chat.drawing import draw

    print(visible(draw(chat.talk)))


def _diff(chat: ChatSession, rest: str) -> None:
    from glassloop.record.diff import diff

    if not rest:
        raise GlassloopError("the id of another answer is expected: /diff 84f584fc; /tree shows the ids")
    current, other = chat.talk.last.run, chat.talk.find(rest).run
    with working("Comparing"):
        difference = diff(other, current)
    print(wrapped(visible(f"{other.id[:8]} / {current.id[:8]}: {difference.sentence}", newlines=False)))


def _show(chat: ChatSession, _: str) -> None:
    talk = chat.talk
    print(f"model    {visible(talk.llm.name)}, {talk.llm.op_set}")
    if talk.system is not None:
        print(f"system   {visible(talk.system, newlines=False)}")
    print(f"options  {options_line(talk.sampling, talk.llm.default_sampling)}")
    if talk.at is not None:
        usage = talk.at.run.usage
        print(f"history  {len(talk.at.path)} questions, {known(usage.total_tokens)} tokens,", end=" ")
        print(f"room for {known(usage.context_left)} more")


# ── changing the conversation ──────────────────────────────────────────────────────────────────────────────


def _fork(chat: ChatSession, rest: str) -> None:
    name, token = _two(rest)
    if not name:
        raise GlassloopError("/fork needs a token of the last answer, and may have the token to use instead")
    talk = chat.talk
    place = talk.place(name)
    chosen = talk.named_token(place, token) if token else {}
    chat.answer(talk.last.question, talk.fork(place, **chosen), beside=talk.last)


def _rewind(chat: ChatSession, rest: str) -> None:
    talk = chat.talk
    if rest:
        turn = talk.rewind(talk.place(rest))
        chat.keep(turn.run)
        print(f"{visible(turn.run.text)}▏\n")
        chat.note(f"{len(turn.run.tokens)} tokens kept · /tree shows both")
    else:
        question, talk.at = talk.last.question, talk.last.above
        chat.note(f"before “{visible(question, newlines=False)}” · /tree shows what came of it")


def _go(chat: ChatSession, rest: str) -> None:
    turn = chat.talk.go(rest)
    print(f"› {visible(turn.question)}\n{visible(turn.run.text)}")


def _new(chat: ChatSession, _: str) -> None:
    chat.talk.at = None
    chat.note("a new conversation · /tree shows the old one")


# ── the rest ───────────────────────────────────────────────────────────────────────────────────────────────


def _set(chat: ChatSession, rest: str) -> None:
    name, value = _two(rest)
    if not name:
        return _show(chat, "")
    name = name.replace("-", "_")
    options = chat.talk.sampling.to_dict()
    if value:
        options[name] = _value(name, value, chat.talk.llm.default_sampling)
        chat.talk.sampling = chat.talk.check(Sampling.from_dict(options))
    elif name not in options:
        Sampling.from_dict({name: None})  # raises: there is no such option
    help = next(field.metadata["help"] for field in fields(Sampling) if field.name == name)
    chat.note(f"{name} = {chat.talk.sampling.to_dict()[name]} · {help}")
    return None


def _save(chat: ChatSession, rest: str) -> None:
    from pathlib import Path

    from glassloop.cli.chat.drawing import transcript
    from glassloop.record.format.glass_file import write

    if not rest:
        raise GlassloopError("/save needs a file: .glass for all answers with their records, .json, or .md")
    path, talk = Path(rest).expanduser(), chat.talk
    path_runs = [turn.run for turn in talk.last.path]
    if path.suffix == ".glass":
        others = [turn.run for turn in talk if turn.run not in path_runs]
        write(path, [path_runs[-1], *path_runs[:-1], *others])
        return chat.note(f"{path}: {len(path_runs) + len(others)} runs")
    if path.suffix == ".json":
        chat_record = {
            "model": talk.llm.name,
            "messages": talk.messages,
            "options": talk.sampling.to_dict(),
            "runs": [run.id for run in path_runs],
        }
        text = json.dumps(chat_record, indent=2, ensure_ascii=False) + "\n"
    else:
        text = transcript(talk)
    write_text(path, text)
    return chat.note(f"{path}: {len(path_runs)} {'answer' if len(path_runs) == 1 else 'answers'}")


def _help(chat: ChatSession, _: str) -> None:
    width = max(len(f"/{command.name} {command.takes}") for command in COMMANDS)
    for command in COMMANDS:
        print(f"{f'/{command.name} {command.takes}':{width}}  {command.help}")
    print('\nA line that ends in \\ continues; """ opens and closes a message of many lines;')
    print("// begins a message with a slash. Ctrl-C stops an answer, Ctrl-D ends the chat.")


def _quit(chat: ChatSession, _: str) -> None:
    chat.over = True


COMMANDS = (
    Command("why", "[n]", "explain why token n was chosen", _why),
    Command("alts", "[n]", "the alternatives to token n", _alts),
    Command("tokens", "", "the tokens of the last answer with their numbers", _tokens),
    Command("worst", "[count]", "the most surprising tokens, and those that won by luck", _worst),
    Command("fork", "n [token]", "another answer, with this token at n, or with new luck from n on", _fork),
    Command("rewind", "[n]", "keep n tokens of the answer; without n, take back the question", _rewind),
    Command("tree", "", "all questions and answers", _tree),
    Command("go", "run", "continue from another answer of the tree", _go),
    Command("diff", "run", "where this answer differs from another one of the tree, and why", _diff),
    Command("set", "option value", "change an option: /set temperature 0.3", _set),
    Command("show", "", "the model, the options, the context that is left", _show),
    Command("save", "file", "save as .glass (with records), .json or .md", _save),
    Command("new", "", "begin a new conversation", _new),
    Command("help", "", "this list", _help),
    Command("quit", "", "end the chat", _quit),
)


def _two(rest: str) -> tuple[str, str]:
    """Returns the first word, or what is in quotes, and all that follows."""
    if rest[:1] in ('"', "'") and (end := rest.find(rest[0], 1)) > 0:
        return rest[: end + 1], rest[end + 1 :].strip()
    first, _, second = rest.partition(" ")
    return first, second.strip()


def _value(name: str, text: str, defaults: Sampling) -> Any:
    """Returns the value of an option: JSON, or the text itself. `none` and `default` stand for the model's
    default, `off` for that of an option without one."""
    kind = next((field.metadata["kind"] for field in fields(Sampling) if field.name == name), None)
    low = text.lower()
    if kind == "flag":
        return {"true": True, "on": True, "false": False, "off": False}.get(low, text)
    if low in ("none", "null", "default", "off"):
        return (Sampling() if low == "off" else defaults).to_dict().get(name)
    if name == "stages" and not text.startswith("["):
        return [each.strip() for each in text.split(",")]
    if kind == "stage_options" and not text.startswith("{"):
        return stage_options_of(text.split())
    return text if kind == "text" else json_or_text(text)
