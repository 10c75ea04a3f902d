"""Thoughts apart from the answer, with OpenAI's own client. The model is a tiny random one whose template has
marks around thoughts: a constraint makes it write what a trained model would.
"""

from __future__ import annotations

import pytest
from hostile.tiny import write_tiny
from ollama import Client as Ollama
from openai import OpenAI

from glassloop import LLM, Run, Sampling

from .conftest import serving

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
ASK = [{"role": "user", "content": "How many?"}]
SAYS = "<think>\nTwo and two.\n</think>\n\nFour."


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("thoughts") / "tiny.gguf", TEMPLATE, 4096)


@pytest.fixture(scope="module")
def client(file):
    with (
        serving("--model", str(file), "--kv-memory", "32MB") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made,
    ):
        yield made


def ask(client, says=SAYS, **options):
    extra = {"choice": [says], **options.pop("extra", {})}
    return client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=400, seed=7, extra_body=extra, **options
    )


def test_a_chat_has_the_thoughts_apart(client):
    answer = ask(client)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Two and two.", "Four.")
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


def test_a_stream_has_the_thoughts_apart(client):
    thought = content = ""
    for chunk in ask(client, stream=True):
        delta = chunk.choices[0].delta
        assert not (content and getattr(delta, "reasoning_content", None))
        thought += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    assert (thought, content) == ("Two and two.", "Four.")


def test_a_thought_that_the_prompt_has_begun(client):
    extra = {"chat_template_kwargs": {"enable_thinking": True}}
    message = ask(client, "So.\n</think>\n\nFour.", extra=extra).choices[0].message
    assert (message.reasoning_content, message.content) == ("So.", "Four.")
    message = ask(client, "Not done", extra=extra).choices[0].message
    assert (message.reasoning_content, message.content) == ("Not done", "")


def test_an_effort_turns_thoughts_on_and_off(client):
    for effort, thought in (("high", "So."), ("none", None)):
        message = ask(client, "So.\n</think>\n\nFour.", reasoning_effort=effort).choices[0].message
        assert getattr(message, "reasoning_content", None) == thought
    made = client.responses.create(
        model="tiny",
        input="How many?",
        reasoning={"effort": "low"},
        max_output_tokens=400,
        extra_body={"choice": ["So.\n</think>\n\nFour."], "seed": 7},
    )
    assert made.output[0].content[0].text == "So." and made.output_text == "Four."


def test_an_answer_without_thoughts_is_as_before(client):
    message = ask(client, " Four <think> of them").choices[0].message
    assert message.content == " Four <think> of them" and "reasoning_content" not in message.model_dump()


def test_a_response_has_an_item_of_reasoning(client):
    made = client.responses.create(
        model="tiny", input="How many?", max_output_tokens=400, extra_body={"choice": [SAYS], "seed": 7}
    )
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.output[0].content[0].text == "Two and two." and made.output_text == "Four."
    assert made.usage.output_tokens_details.reasoning_tokens > 0
    kept = client.responses.retrieve(made.id)
    assert [item.type for item in kept.output] == ["reasoning", "message"]
    assert kept.output[0].content == made.output[0].content


def test_a_response_streams_reasoning_before_its_message(client):
    kinds, thought, places = list[str](), "", list[int]()
    with client.responses.stream(
        model="tiny", input="How many?", max_output_tokens=400, extra_body={"choice": [SAYS], "seed": 7}
    ) as stream:
        for each in stream:
            kinds.append(each.type)
            if each.type == "response.reasoning_text.delta":
                thought += each.delta
            if each.type == "response.output_item.done":
                places.append(each.output_index)
        made = stream.get_final_response()
    assert thought == "Two and two." and made.output_text == "Four." and places == [0, 1]
    assert kinds.index("response.reasoning_text.done") > kinds.index("response.reasoning_text.delta")


def test_the_record_has_the_spans(file, tmp_path):
    llm = LLM(file)
    run = llm.chat(ASK, Sampling(choice=[SAYS], seed=7, max_tokens=400))
    thought, answer = run.spans
    assert (thought.kind, answer.kind) == ("thought", "answer")
    assert "Two" in "".join(token.text for token in run.tokens[thought.first : thought.last])
    assert (run.thoughts, run.answer, run.text) == ("Two and two.", "Four.", SAYS)
    run.save(tmp_path / "a.glass")
    again = Run.load(tmp_path / "a.glass")
    assert again.spans == run.spans and again.form == run.form
    assert run.to_dict()["spans"][0]["text"] == "Two and two."
    assert run.fork(answer.first).form == run.form
    plain = llm.generate("How many?", Sampling(choice=[SAYS], seed=7, max_tokens=400))
    assert plain.form is None and plain.answer == plain.text == SAYS and not plain.thoughts


def test_ollamas_answers_have_the_thoughts_apart(client):
    ollama = Ollama(host=str(client.base_url).removesuffix("/v1/"), timeout=120)
    options = {"choice": [SAYS], "num_predict": 400, "seed": 7}
    message = ollama.chat(model="tiny", messages=ASK, options=options).message
    assert (message.thinking, message.content) == ("Two and two.", "Four.")
    parts = [each.message for each in ollama.chat("tiny", ASK, options=options, stream=True)]
    assert "".join(part.thinking or "" for part in parts) == "Two and two."
    assert "".join(part.content for part in parts) == "Four."
    answer = ollama.generate("tiny", "How many?", think=False, options=options)
    assert (answer.thinking, answer.response) == ("Two and two.", "Four.")
