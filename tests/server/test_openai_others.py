"""OpenAI's other endpoints with its own client: completions, responses, embeddings, models."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError
from openai.types.responses import ResponseUsage

from glassloop import Sampling

from .conftest import MODEL

FRANCE = "The capital of France is"


def complete(client, prompt=FRANCE, **options):
    options.setdefault("max_tokens", 6)
    options.setdefault("seed", 7)
    return client.completions.create(model=MODEL, prompt=prompt, **options)


# ── completions ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_completion_is_the_engines_own(client, llm):
    answer = complete(client)
    run = llm.generate(FRANCE, Sampling(max_tokens=6, seed=7))
    assert answer.choices[0].text == run.text and answer.usage.prompt_tokens == 5
    assert client.completions.create(model=MODEL, prompt=FRANCE).usage.completion_tokens <= 16


def test_prompts_of_every_form(client, llm):
    ids = llm.tokenizer.encode(FRANCE)
    one = complete(client).choices[0].text
    assert complete(client, ids).choices[0].text == one
    both = complete(client, [FRANCE, "Once upon"], n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3] and both.choices[0].text == one
    assert complete(client, [ids, [504]]).choices[0].text == one
    second = llm.generate("Once upon", Sampling(max_tokens=6, seed=7, n=2))
    assert [choice.text for choice in both.choices[2:]] == [run.text for run in second.samples]


@pytest.mark.parametrize("options", [{}, {"beam_width": 3, "n": 2}])
def test_echo_and_logprobs(client, llm, options):
    answers = complete(client, echo=True, logprobs=3, extra_body=options).choices
    runs = llm.generate(FRANCE, Sampling(max_tokens=6, seed=7, prompt_logprobs=3, logprobs=3, **options))
    for answer, run in zip(answers, runs.samples, strict=True):
        assert answer.text == FRANCE + run.text
        told = answer.logprobs
        assert "".join(told.tokens) == answer.text and told.token_logprobs[0] is None
        assert len(run.prompt_tokens) == len(run.prompt_ids) - 1
        assert told.token_logprobs[1:] == [token.raw_logprob for token in run.prompt_tokens + run.tokens]
        for offset, token in zip(told.text_offset, told.tokens, strict=True):
            assert answer.text[offset : offset + len(token)] == token
        assert all(3 <= len(top) <= 4 for top in told.top_logprobs[1:])


def test_offsets_where_tokens_are_parts_of_characters(client):
    prompt = "I love 🚀 and ☃ snow"
    answer = complete(client, prompt, echo=True, logprobs=1, temperature=0).choices[0]
    told = answer.logprobs
    assert len(told.tokens) > len(set(told.text_offset))  # some tokens are parts of characters
    assert told.text_offset == sorted(told.text_offset) and told.text_offset[-1] <= len(answer.text)
    for offset, token in zip(told.text_offset, told.tokens, strict=True):
        assert "<0x" in token or answer.text[offset : offset + len(token)] == token
    one = complete(client, "The", echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    assert (one.tokens, one.token_logprobs, one.text_offset) == (["The"], [None], [0])


def test_prompt_logprobs_are_answered(client, llm):
    run = llm.generate(FRANCE, Sampling(max_tokens=1, seed=7, prompt_logprobs=2))
    extra = {"prompt_logprobs": 2}
    told = complete(client, max_tokens=1, extra_body=extra).choices[0].prompt_logprobs
    assert told[0] is None and len(told) == len(run.prompt_ids)
    for each, token in zip(told[1:], run.prompt_tokens, strict=True):
        own = {"logprob": token.raw_logprob, "rank": token.rank, "decoded_token": token.piece}
        assert each[str(token.id)] == own and 2 <= len(each) <= 3
        assert [each[str(other.id)]["rank"] for other in token.alternatives[:2]] == [1, 2]
    said = [{"role": "user", "content": FRANCE}]
    chat = client.chat.completions.create(model=MODEL, messages=said, max_tokens=1, extra_body=extra)
    assert chat.prompt_logprobs[0] is None and len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    for wrong in (
        lambda: complete(client, stream=True, extra_body=extra),
        lambda: respond(client, extra_body=extra),
    ):
        with pytest.raises(BadRequestError) as caught:
            wrong()
        assert caught.value.body["param"] == "prompt_logprobs"


def test_scoring_a_prompt_without_generating(client, llm):
    answer = complete(client, echo=True, logprobs=0, max_tokens=0)
    assert answer.choices[0].text == FRANCE and answer.usage.completion_tokens == 0
    assert len(answer.choices[0].logprobs.tokens) == 5
    with pytest.raises(BadRequestError):
        complete(client, max_tokens=0)


def test_best_of_gives_the_likeliest(client, llm):
    answer = complete(client, best_of=4, n=2)
    runs = llm.generate(FRANCE, Sampling(max_tokens=6, seed=7, n=4)).samples
    best = sorted(runs, key=lambda run: -run.logprob / len(run.tokens))[:2]
    assert [choice.text for choice in answer.choices] == [run.text for run in best]
    assert answer.usage.completion_tokens == sum(len(run.tokens) for run in runs)
    wrongs = ({"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 4, "n": 0})
    for wrong in wrongs:
        with pytest.raises(BadRequestError) as caught:
            list(complete(client, **wrong))
        assert caught.value.body["param"] == ("best_of" if wrong.get("n") != 0 else "n")


def test_completions_stream_the_same(client):
    whole = complete(client, [FRANCE, "Once"], logprobs=2, echo=True)
    usage = {"include_usage": True}
    chunks = list(
        complete(client, [FRANCE, "Once"], logprobs=2, echo=True, stream=True, stream_options=usage)
    )
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):  # what was cached may differ
        assert getattr(chunks[-1].usage, name) == getattr(whole.usage, name) > 0
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(each.text for each in mine) == choice.text
        told = [each.logprobs for each in mine if each.logprobs]
        assert [lp for each in told for lp in each.token_logprobs] == choice.logprobs.token_logprobs
        assert [lp for each in told for lp in each.text_offset] == choice.logprobs.text_offset
        assert mine[-1].finish_reason == choice.finish_reason


def test_stop_and_penalties_and_extras(client, llm):
    options = {
        "stop": ["."],
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "temperature": 0.6,
        "top_p": 0.9,
    }
    answer = complete(client, extra_body={"min_p": 0.05}, logit_bias={"28": -3}, **options)
    run = llm.generate(FRANCE, Sampling(max_tokens=6, seed=7, min_p=0.05, logit_bias={28: -3}, **options))
    assert answer.choices[0].text == run.text


def test_suffix_is_refused(client):
    with pytest.raises(BadRequestError) as caught:
        complete(client, suffix="!")
    assert caught.value.body["param"] == "suffix" and caught.value.body["code"] == "unsupported_parameter"


@pytest.mark.parametrize("prompt", ["", [], [[]], ["ok", ""], [99999999]])
def test_prompts_that_are_none(client, prompt):
    with pytest.raises(BadRequestError) as caught:
        complete(client, prompt)
    assert caught.value.body["param"].startswith("prompt")
    if prompt == []:
        assert "a text, token ids, or a list of them is expected" in caught.value.body["message"]


# ── responses ──────────────────────────────────────────────────────────────────────────────────────────────


def respond(client, input="Say hi.", **options):
    options.setdefault("max_output_tokens", 8)
    extra = {"seed": 7, **options.pop("extra_body", {})}
    return client.responses.create(model=MODEL, input=input, extra_body=extra, **options)


def test_a_response_is_the_engines_own(client, llm):
    answer = respond(client, instructions="Be brief.", temperature=0.5, top_p=0.9)
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi."}]
    run = llm.chat(said, Sampling(max_tokens=8, seed=7, temperature=0.5, top_p=0.9))
    assert answer.output_text == run.text and answer.usage.input_tokens == len(run.prompt_ids)
    assert answer.status == ("incomplete" if run.finish_reason == "length" else "completed")
    assert answer.temperature == 0.5 and answer.instructions == "Be brief."


def test_a_conversation_as_input(client, llm):
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello!"}]},
        {"role": "user", "content": "And?"},
    ]
    plain = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, said[2]]
    assert respond(client, said).output_text == llm.chat(plain, Sampling(max_tokens=8, seed=7)).text


def test_an_answer_can_be_sent_back_as_the_client_dumps_it(client):
    first = respond(client)
    said = [{"role": "user", "content": "Say hi."}]
    dumped = [{**each.model_dump(), "phase": None} for each in first.output]
    again = respond(client, [*said, *dumped, {"role": "user", "content": "And?"}])
    assert (
        again.output_text
        == respond(client, [*said, *first.output, *[{"role": "user", "content": "And?"}]]).output_text
    )


def test_a_response_is_what_the_clients_types_say(client):
    answer = respond(client, tool_choice="none", parallel_tool_calls=True)
    assert answer.tool_choice == "none" and answer.parallel_tool_calls is True
    assert answer.created_at.is_integer()
    used = ResponseUsage.model_validate(answer.usage.model_dump())
    details = used.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == used.input_tokens


@pytest.mark.parametrize(
    ("item", "place", "instead"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input[1]", "send messages"),
        ({"type": "computer_call_output", "call_id": "c"}, "input[1]", "send messages"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]},
            "input[1].content[0]",
            "text only",
        ),
    ],
)
def test_items_that_are_no_text_are_refused_in_words(client, item, place, instead):
    with pytest.raises(BadRequestError, match=instead) as caught:
        respond(client, [{"role": "user", "content": "Hi"}, item])
    assert caught.value.body["param"] == place and caught.value.body["message"].startswith(f"{place}: ")


def test_response_events(client):
    whole = respond(client)
    events = list(respond(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text


def test_response_formats_and_logprobs(client):
    form = {"type": "json_schema", "name": "x", "schema": {"enum": ["red", "green"]}, "strict": True}
    assert json.loads(respond(client, text={"format": form}).output_text) in ("red", "green")
    answer = respond(client, include=["message.output_text.logprobs"], top_logprobs=2)
    told = answer.output[0].content[0].logprobs
    assert b"".join(bytes(each.bytes) for each in told).decode() == answer.output_text
    assert all(len(each.top_logprobs) == 2 for each in told)


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "web_search"}},
        {"top_logprobs": 2},
        {"input": []},
    ],
)
def test_responses_refuse_what_they_cannot_do(client, options):
    with pytest.raises(BadRequestError) as caught:
        respond(client, **options)
    assert re.split(r"[.\[]", caught.value.body["param"])[0] == next(iter(options))


WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_functions_are_called(client, choice):
    options = {"tools": [WEATHER], "tool_choice": choice, "max_output_tokens": 60, "temperature": 0}
    answer = respond(client, "Is it warm in Oslo?", **options)
    (call,) = answer.output
    assert call.type == "function_call" and call.name == "weather" and call.status == "completed"
    assert json.loads(call.arguments)["city"] in ("Paris", "Oslo") and answer.status == "completed"
    assert answer.tools[0].name == "weather" and answer.parallel_tool_calls is True
    events = list(respond(client, "Is it warm in Oslo?", stream=True, **options))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[3].delta == events[4].arguments == call.arguments
    assert events[-1].response.output[0].arguments == call.arguments
    assert [event.sequence_number for event in events] == list(range(7))


def test_text_with_functions_is_streamed_as_text(client):
    extra = {"choice": ["It is warm."]}
    options = {"tools": [WEATHER], "max_output_tokens": 60, "extra_body": extra}
    whole, events = respond(client, **options), list(respond(client, stream=True, **options))
    assert whole.output_text == "It is warm." and len(whole.output) == 1
    kinds = [event.type for event in events]
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == "It is warm."
    said = 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    both = respond(client, **{**options, "extra_body": {"choice": [said]}})
    assert [item.type for item in both.output] == ["message", "function_call"]
    assert both.output_text == "I look. "
    events = list(respond(client, stream=True, **{**options, "extra_body": {"choice": [said]}}))
    assert [item.type for item in events[-1].response.output] == ["message", "function_call"]
    assert [e.output_index for e in events if e.type == "response.output_item.done"] == [0, 1]


def test_calls_and_their_results_are_input(client, llm):
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Oslo"}'}
    said = [
        {"role": "user", "content": "Is it warm in Oslo?"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {**call, "id": "fc_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "22 C"}]},
    ]
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    plain = [
        said[0],
        {"role": "assistant", "content": written},
        {"role": "user", "content": "<tool_response>\n22 C\n</tool_response>"},
    ]
    answer = respond(client, said, reasoning={"effort": "low"})
    assert answer.output_text == llm.chat(plain, Sampling(max_tokens=8, seed=7)).text


# ── embeddings and models ──────────────────────────────────────────────────────────────────────────────────


def test_embeddings_are_of_length_one_and_near_for_what_is_alike(client):
    texts = ["The cat sat on the mat.", "A kitten was sitting on a rug.", "Interest rates rose again."]
    answer = client.embeddings.create(model=MODEL, input=texts)  # the client asks for base64
    vectors = np.array([each.embedding for each in answer.data])
    assert vectors.shape == (3, 576) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    floats = client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
    assert np.array_equal(np.float32(floats.data[0].embedding), np.float32(answer.data[0].embedding))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 15


def test_an_embedding_is_the_mean_of_the_last_hidden_states(client, llm):
    from glassloop.model.cache import Branches

    ids = llm.tokenizer.encode("The cat sat on the mat. " * 20)  # more than one piece
    answer = client.embeddings.create(model=MODEL, input=ids)
    branches = Branches(llm.transformer, len(ids))
    batch = branches.batch([(0, 0, ids)], every_logit=True)
    mean = llm.transformer.hidden(batch, branches.pages).astype(np.float64).mean(axis=0)
    assert np.allclose(answer.data[0].embedding, mean / np.linalg.norm(mean), atol=1e-6)


def test_embeddings_refuse(client):
    for wrong in ({"input": ""}, {"input": []}, {"input": "x", "dimensions": 5}, {"input": [99999999]}):
        with pytest.raises(BadRequestError) as caught:
            client.embeddings.create(model=MODEL, **wrong)
        assert caught.value.body["param"] in ("input", "dimensions")


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "glassloop"
    assert client.models.retrieve(MODEL).root == MODEL
    with pytest.raises(NotFoundError):
        client.models.retrieve("gpt-9")


def test_logprobs_of_no_alternatives_have_the_token_itself(client):
    logprobs = complete(client, logprobs=0, max_tokens=3).choices[0].logprobs
    pairs = zip(logprobs.tokens, logprobs.token_logprobs, strict=True)
    assert logprobs.top_logprobs == [{token: logprob} for token, logprob in pairs]


def test_a_slash_at_the_end_of_a_path_is_ignored(server):
    body = {"prompt": FRANCE, "max_tokens": 2, "seed": 7}
    answers = [server.post(path, body).json() for path in ("/v1/completions", "/v1/completions/")]
    assert answers[0]["choices"] == answers[1]["choices"]
