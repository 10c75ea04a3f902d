"""Responses that go on from others, in the background and in conversations, with OpenAI's own client; and
what other keys and later servers see of them."""

from __future__ import annotations

import pytest
from hostile.tiny import write_tiny
from openai import BadRequestError, ConflictError, NotFoundError, OpenAI
from waiting import wait_until

from glassloop import LLM, Sampling

from .conftest import MODEL
from .in_process import KEYS, place

OPTIONS = {"max_output_tokens": 12, "temperature": 0.5, "extra_body": {"seed": 7}}
SAMPLING = Sampling(max_tokens=12, temperature=0.5, seed=7)
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]},
}
LONG = {"max_output_tokens": 3000, "extra_body": {"seed": 7, "ignore_eos": True}}


def respond(client, input, model=MODEL, **options):
    return client.responses.create(model=model, input=input, **{**OPTIONS, **options})


def ended(client, id):
    wait_until(lambda: client.responses.retrieve(id).status not in ("queued", "in_progress"))
    return client.responses.retrieve(id)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with LLM(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), kv_memory="8MB") as made:
        yield made


def clients(at):
    """Returns the clients of the two keys of a server."""
    url = f"{str(at.alice.http.base_url).rstrip('/')}/v1"
    return [OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) for key in KEYS]


# ── going on from a response ───────────────────────────────────────────────────────────────────────────────


def test_a_response_goes_on_from_another_one(client, llm):
    first = respond(client, "My name is Ada.", instructions="Be brief.")
    second = respond(client, "What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    assert second.output_text == llm.chat(messages, SAMPLING).text
    third = respond(client, "Sure?", previous_response_id=second.id, instructions="Shout.")
    messages = [{"role": "system", "content": "Shout."}, *messages]
    messages += [
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "Sure?"},
    ]
    assert third.output_text == llm.chat(messages, SAMPLING).text
    items = client.responses.input_items.list(third.id, order="asc").data
    assert [item.content[0].text for item in items] == [each["content"] for each in messages[1:]]
    (newest,) = client.responses.input_items.list(third.id, limit=1).data
    assert newest.content[0].text == "Sure?"
    client.responses.delete(first.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    with pytest.raises(NotFoundError, match="no such response"):
        respond(client, "Again?", previous_response_id=first.id)


def test_calls_and_their_results_are_gone_on_from(client):
    asked = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 60}
    first = respond(client, "Is it warm in Oslo?", **asked)
    (call,) = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "3 degrees"}
    second = respond(client, [output], previous_response_id=first.id, tools=[TOOL])
    whole = [{"role": "user", "content": "Is it warm in Oslo?"}, call.model_dump(exclude_none=True), output]
    assert second.output_text == respond(client, whole, tools=[TOOL]).output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_a_chat_of_another_endpoint_is_gone_on_from(client, llm):
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi."}], max_tokens=5, seed=1
    )
    answer = respond(client, "And you?", previous_response_id=chat.id)
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": chat.choices[0].message.content},
        {"role": "user", "content": "And you?"},
    ]
    assert answer.output_text == llm.chat(messages, SAMPLING).text


def test_what_does_not_fit_is_left_out_from_the_beginning(tiny):
    words = "a" * (tiny.config.context // 9)  # a token each
    talk = [{"role": "user", "content": f"{number} {words}"} for number in range(12)]
    talk.append({"role": "user", "content": "Say hi."})
    with place(tiny) as at:
        client, _ = clients(at)
        short = {"model": "tiny", "max_output_tokens": 2, "instructions": "Be brief."}
        with pytest.raises(BadRequestError, match="maximum context length"):
            respond(client, talk, **short)
        answer = respond(client, talk, **short, truncation="auto")
        assert answer.truncation == "auto" and answer.usage.input_tokens < tiny.config.context
        kept = client.responses.input_items.list(answer.id, order="asc", limit=100).data
        texts = [item.content[0].text for item in kept]
        assert texts == [each["content"] for each in talk[-len(texts) :]] and 5 < len(texts) < 10
        with pytest.raises(BadRequestError, match="maximum context length"):
            respond(client, words * 12, **short, truncation="auto")


# ── streams of responses that were given, and the background ───────────────────────────────────────────────


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 60}])
def test_the_events_of_a_response_are_sent_again(client, more):
    events = [event.model_dump() for event in respond(client, "Say hi.", stream=True, **more)]
    id = events[0]["response"]["id"]
    again = [event.model_dump() for event in client.responses.retrieve(id, stream=True)]
    assert again == events
    rest = [event.model_dump() for event in client.responses.retrieve(id, stream=True, starting_after=3)]
    assert rest == events[4:]


def test_a_response_in_the_background(client, llm):
    begun = respond(client, "Say hi.", background=True)
    assert begun.status == "queued" and begun.background and begun.output == []
    run = llm.chat([{"role": "user", "content": "Say hi."}], SAMPLING)
    assert ended(client, begun.id).output_text == run.text
    events = list(client.responses.retrieve(begun.id, stream=True))
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == run.text


def test_a_response_in_the_background_outlives_its_client_and_is_cancelled(client):
    stream = respond(client, "Tell me a story.", background=True, stream=True, **LONG)
    first = next(iter(stream))
    stream.close()
    id = first.response.id
    assert client.responses.retrieve(id).status in ("queued", "in_progress")
    with pytest.raises(ConflictError, match="still in progress"):
        respond(client, "Go on.", previous_response_id=id)
    cancelled = client.responses.cancel(id)
    assert cancelled.status == "cancelled" and client.responses.retrieve(id).status == "cancelled"
    done = respond(client, "Say hi.")
    assert client.responses.cancel(done.id).status == done.status


# ── conversations ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_grows(client, llm):
    hello = {"type": "message", "role": "user", "content": "My name is Ada."}
    talk = client.conversations.create(items=[hello], metadata={"topic": "names"})
    assert client.conversations.retrieve(talk.id).metadata == {"topic": "names"}
    first = respond(client, "Say hi to me.", conversation=talk.id)
    assert first.conversation.id == talk.id
    client.conversations.items.create(talk.id, items=[{"role": "user", "content": "Be polite."}])
    second = respond(client, "Again.", conversation={"id": talk.id}, stream=True)
    *_, last = second
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "user", "content": "Say hi to me."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Be polite."},
        {"role": "user", "content": "Again."},
    ]
    run = llm.chat(messages, SAMPLING)
    items = client.conversations.items.list(talk.id, order="asc").data
    assert [item.content[0].text for item in items] == [each["content"] for each in messages] + [run.text]
    assert last.response.output_text == run.text
    assert client.conversations.items.retrieve(items[2].id, conversation_id=talk.id) == items[2]
    for item in (items[0], items[2]):
        client.conversations.items.delete(item.id, conversation_id=talk.id)
    left = client.conversations.items.list(talk.id, order="asc").data
    assert left == [items[1], *items[3:]]
    assert client.conversations.update(talk.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.delete(talk.id).deleted
    with pytest.raises(NotFoundError):
        respond(client, "Hi.", conversation=talk.id)
    assert client.responses.retrieve(first.id).output_text == first.output_text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "both given"),
        ({"conversation": "conv_1"}, "no such conversation"),
        ({"metadata": {"a": "b" * 2_000_000}}, "at most"),
    ],
)
def test_what_state_refuses(server, options, words):
    answer = server.post("/v1/responses", {"input": "Hi.", "max_output_tokens": 2, **options})
    assert answer.status_code in (400, 404) and words in answer.json()["error"]["message"]


# ── keys and stores ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stored", [False, True])
def test_state_belongs_to_its_key_and_outlives_the_server(tiny, tmp_path, stored):
    store = tmp_path / "runs.db" if stored else None

    short = {"model": "tiny", "max_output_tokens": 2}
    with place(tiny, store) as at:
        alice, mallory = clients(at)
        talk = alice.conversations.create(items=[{"role": "user", "content": "a secret"}])
        mine = respond(alice, "hi", conversation=talk.id, metadata={"k": "v"}, **short)
        for attempt in (
            lambda: mallory.responses.retrieve(mine.id),
            lambda: mallory.responses.cancel(mine.id),
            lambda: mallory.responses.delete(mine.id),
            lambda: mallory.responses.input_items.list(mine.id),
            lambda: respond(mallory, "x", previous_response_id=mine.id, **short),
            lambda: respond(mallory, "x", conversation=talk.id, **short),
            lambda: mallory.conversations.retrieve(talk.id),
            lambda: mallory.conversations.update(talk.id, metadata={}),
            lambda: mallory.conversations.delete(talk.id),
            lambda: mallory.conversations.items.list(talk.id),
            lambda: mallory.conversations.items.create(talk.id, items=[{"role": "user", "content": "x"}]),
        ):
            with pytest.raises(NotFoundError):
                attempt()
        count = len(alice.conversations.items.list(talk.id).data)
        assert count == 3
        if not stored:
            return
    with place(tiny, store) as at:  # the next server
        alice, mallory = clients(at)
        again = alice.responses.retrieve(mine.id)
        assert again.metadata == {"k": "v"} and again.conversation.id == talk.id
        assert len(alice.conversations.items.list(talk.id).data) == count
        after = respond(alice, "more", conversation=talk.id, **short)
        assert len(alice.responses.input_items.list(after.id).data) == count + 1
        alice.responses.delete(mine.id)
        assert len(alice.conversations.items.list(talk.id).data) == count - 1 + 2
        alice.conversations.delete(talk.id)
        alice.responses.delete(after.id)
