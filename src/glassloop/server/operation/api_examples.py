"""A sentence and an example for each route, as data for the page `/docs`. Every example is a request that the
default model answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_SAY_HI = [{"role": "user", "content": "Say hi."}]
_START = "The capital of France is"
_WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}


_CONVERSATION = {"id": "CONVERSATION"}  # a value that the reader has to fill in


@dataclass(frozen=True, slots=True)
class Example:
    """What a route does, and a request for it. Path parameters that have no value here are the ids of a run
    or of its tree."""

    about: str
    body: dict[str, Any] | None = None
    path: dict[str, str] = field(default_factory=dict)
    query: str = ""
    is_file: bool = False  # the body is a .glass file
    more: tuple[tuple[str, dict[str, Any]], ...] = ()  # further bodies, each with a name


EXAMPLES = {
    "POST /v1/chat/completions": Example(
        "Generates the next turn of a conversation.",
        {"messages": _SAY_HI, "max_tokens": 40, "temperature": 0.5, "seed": 7},
        more=(
            ("streamed", {"messages": _SAY_HI, "max_tokens": 40, "seed": 7, "stream": True}),
            (
                "with a tool",
                {
                    "messages": [{"role": "user", "content": "Is it warm in Oslo?"}],
                    "tools": [_WEATHER],
                    "tool_choice": "required",
                    "max_tokens": 60,
                },
            ),
            (
                "as JSON",
                {
                    "messages": [{"role": "user", "content": "Which city is the capital of France?"}],
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {
                            "name": "city",
                            "schema": {
                                "type": "object",
                                "properties": {"city": {"type": "string", "maxLength": 20}},
                                "required": ["city"],
                                "additionalProperties": False,
                            },
                        },
                    },
                    "max_tokens": 60,
                    "temperature": 0,
                },
            ),
        ),
    ),
    "POST /v1/completions": Example(
        "Continues one text, or several.",
        {"prompt": _START, "max_tokens": 16, "temperature": 0, "logprobs": 2},
        more=(
            ("streamed", {"prompt": _START, "max_tokens": 16, "seed": 7, "stream": True}),
            ("by diffusion", {"prompt": _START, "max_tokens": 8, "seed": 7, "diffusion": {"block": 8}}),
        ),
    ),
    "POST /v1/responses": Example(
        "Generates an answer in the form of OpenAI's newer endpoint.",
        {"input": "Say hi.", "max_output_tokens": 40, "seed": 7},
        more=(("streamed", {"input": "Say hi.", "max_output_tokens": 40, "seed": 7, "stream": True}),),
    ),
    "GET /v1/responses/{id}": Example(
        "Returns a response that was given before, by its id or that of its run."
    ),
    "GET /v1/responses/{id}/input_items": Example(
        "Lists the items that a response was given for, with all that it went on from."
    ),
    "POST /v1/responses/{id}/cancel": Example("Ends a response that is computed in the background."),
    "DELETE /v1/responses/{id}": Example("Removes the run of a response."),
    "POST /v1/conversations": Example(
        "Begins a conversation that the server keeps.",
        {"items": [{"role": "user", "content": "Say hi."}], "metadata": {"topic": "greetings"}},
    ),
    "GET /v1/conversations/{id}": Example("Describes a conversation.", path=_CONVERSATION),
    "POST /v1/conversations/{id}": Example(
        "Replaces the metadata of a conversation.", {"metadata": {"topic": "farewells"}}, path=_CONVERSATION
    ),
    "GET /v1/conversations/{id}/items": Example("Lists the items of a conversation.", path=_CONVERSATION),
    "POST /v1/conversations/{id}/items": Example(
        "Adds items to a conversation.",
        {"items": [{"role": "user", "content": "And now goodbye."}]},
        path=_CONVERSATION,
    ),
    "GET /v1/conversations/{id}/items/{item}": Example(
        "Returns one item of a conversation.", path={**_CONVERSATION, "item": "ITEM"}
    ),
    "DELETE /v1/conversations/{id}/items/{item}": Example(
        "Removes one item of a conversation.", path={**_CONVERSATION, "item": "ITEM"}
    ),
    "DELETE /v1/conversations/{id}": Example("Removes a conversation with its items.", path=_CONVERSATION),
    "POST /v1/messages": Example(
        "Generates the next turn of a conversation in Anthropic's form.",
        {"messages": _SAY_HI, "max_tokens": 40, "seed": 7},
        more=(
            ("streamed", {"messages": _SAY_HI, "max_tokens": 40, "seed": 7, "stream": True}),
            (
                "with a tool",
                {
                    "messages": [{"role": "user", "content": "Is it warm in Oslo?"}],
                    "tools": [
                        {
                            "name": "weather",
                            "description": "The weather of a city.",
                            "input_schema": _WEATHER["function"]["parameters"],
                        }
                    ],
                    "tool_choice": {"type": "any"},
                    "max_tokens": 60,
                },
            ),
        ),
    ),
    "POST /v1/messages/count_tokens": Example(
        "Counts the tokens of a conversation as the model would get it.", {"messages": _SAY_HI}
    ),
    "POST /v1/embeddings": Example(
        "Returns a vector of length one for each text: the mean of the last hidden states of its tokens.",
        {"input": ["The cat sat on the mat.", "A kitten was on a rug."]},
    ),
    "POST /api/chat": Example(
        "Generates the next turn of a conversation in Ollama's form, streamed as lines of JSON.",
        {"messages": _SAY_HI, "options": {"num_predict": 20, "seed": 7}},
        more=(("as a whole", {"messages": _SAY_HI, "stream": False, "options": {"num_predict": 20}}),),
    ),
    "POST /api/generate": Example(
        "Answers one prompt in Ollama's form; with raw it is continued as it is.",
        {"prompt": "Say hi.", "stream": False, "options": {"num_predict": 20, "seed": 7}},
        more=(("raw", {"prompt": _START, "raw": True, "options": {"num_predict": 8}}),),
    ),
    "POST /api/embed": Example(
        "Returns the embeddings of texts in Ollama's form.", {"input": ["The cat sat on the mat."]}
    ),
    "POST /api/embeddings": Example(
        "Returns the embedding of a text in the older form of Ollama.", {"prompt": "The cat sat on the mat."}
    ),
    "POST /api/show": Example("Describes the model in Ollama's form.", {}),
    "GET /api/tags": Example("Lists the models in Ollama's form."),
    "GET /api/ps": Example("Lists the models that are loaded in Ollama's form."),
    "GET /api/version": Example("Says which version of Ollama's API this is."),
    "GET /v1/models": Example("Lists the model that is served."),
    "GET /v1/models/{model}": Example("Describes the model, if this is its name.", path={"model": "MODEL"}),
    "POST /tokenize": Example(
        "Returns the tokens of a text, or of a conversation as the model gets it.",
        {"prompt": "How do naïve strawberries work?"},
        more=(("of a conversation", {"messages": _SAY_HI}),),
    ),
    "POST /detokenize": Example("Returns the text of tokens.", {"tokens": [504, 3575, 282, 4649, 314]}),
    "GET /api/runs": Example("Lists runs, the newest first.", query="limit=3"),
    "POST /api/runs": Example(
        "Starts one run, or several beside each other in one tree.",
        {"prompt": _START, "sampling": {"max_tokens": 8, "seed": 7}, "pause_after": 4},
        more=(
            (
                "with strategies",
                {
                    "prompt": _START,
                    "sampling": {"max_tokens": 8},
                    "strategies": [
                        {"name": "greedy", "sampling": {"temperature": 0}},
                        {"name": "wild", "sampling": {"temperature": 1.5}},
                    ],
                },
            ),
        ),
    ),
    "GET /api/runs/{id}": Example(
        "Returns a run with every token and its alternatives.", query="alternatives=3"
    ),
    "GET /api/runs/{id}/search": Example(
        "Returns the search that a run is a path of, with all paths and decisions."
    ),
    "GET /api/runs/{id}/search/confidence": Example(
        "Shows how sure the model was along each path of a search.", query="points=20"
    ),
    "GET /api/runs/{id}/events": Example("Streams the tokens of a run as they are generated."),
    "GET /api/trees/{id}/events": Example(
        "Streams the events of all runs of a tree; with close=true until none is active.",
        query="close=true",
    ),
    "POST /api/runs/{id}/fork": Example(
        "Starts a run that keeps the first tokens of another one and then differs.",
        {"at": 1, "token": " a", "sampling": {"max_tokens": 8}},
    ),
    "POST /api/runs/{id}/edit": Example(
        "Starts a run in which a text replaces the tokens from a place on.", {"at": 1, "text": " not"}
    ),
    "POST /api/runs/{id}/step": Example(
        "Continues a run that was stopped or has paused, for a number of tokens.", {"tokens": 1}
    ),
    "POST /api/runs/{id}/stop": Example("Stops a run. It can be continued."),
    "GET /api/runs/{id}/explain/{index}": Example(
        "Explains why a token was chosen, or which one other options would choose.", path={"index": "0"}
    ),
    "GET /api/runs/{id}/worst": Example(
        "Lists the tokens that surprised the model most, and those that won by the most luck.",
        query="count=3",
    ),
    "GET /api/runs/{id}/lens/{name}": Example(
        "Looks inside the model at one token: attention, layers, experts or neighbours.",
        path={"name": "layers"},
        query="count=3",
    ),
    "GET /api/lens/neighbours": Example(
        "Returns the tokens whose embeddings are nearest to that of a word or text.",
        query="of=%20king&count=5",
    ),
    "GET /api/runs/{id}/export": Example("Returns a run as a .glass file."),
    "GET /api/runs/{id}/receipt": Example("Returns the receipt of a run, which can be verified anywhere."),
    "GET /api/runs/{id}/page.html": Example(
        "Returns a run as one HTML page that opens anywhere.", query="explain=all"
    ),
    "POST /api/runs/import": Example("Takes in the first run of a .glass file.", is_file=True),
    "DELETE /api/runs/{id}": Example("Deletes a run, from the store too."),
    "POST /api/edits/infill": Example(
        "Fills a hole between two texts, chosen by its own probability and that of what follows.",
        {"before": _START, "after": ", on the river Seine.", "tokens": 1, "candidates": 4},
    ),
    "POST /api/edits/rewrite": Example(
        "Replaces spans of a text, given by characters.",
        {"text": "The sea is green today.", "spans": [[10, 16]], "candidates": 4},
    ),
    "POST /api/edits/repair": Example(
        "Replaces what is surprising from both sides, until nothing pays or the budget is spent.",
        {"text": "Paris is the capital banana France.", "budget": 300, "candidates": 2, "tokens": 2},
    ),
    "POST /api/edits/sharpen": Example(
        "Draws a text from the model's distribution raised to a power.",
        {"prompt": _START, "alpha": 4.0, "steps": 2, "sampling": {"max_tokens": 6, "temperature": 0.25}},
    ),
    "POST /api/diffusions": Example(
        "Writes a text by filling masks, in passes; a stream reports what each pass has filled.",
        {
            "prompt": "The old man sat down and",
            "sampling": {"max_tokens": 16, "seed": 7},
            "diffusion": {"block": 8, "passes": 4},
        },
        more=(
            (
                "streamed",
                {
                    "prompt": "The old man sat down and",
                    "sampling": {"max_tokens": 8, "seed": 7},
                    "diffusion": {"block": 8, "revise": 1},
                    "stream": True,
                },
            ),
        ),
    ),
    "GET /api/runs/{id}/passes": Example(
        "Shows a text that was written by diffusion after each of its passes.", query="limit=10"
    ),
    "GET /api/info": Example("Describes the model, its limits and every option."),
    "GET /health": Example("Says whether the server accepts requests."),
    "GET /ready": Example("Says whether a request that comes now would be computed."),
    "GET /api/replicas": Example("Lists the engines behind the server, with their load and cache."),
    "GET /api/training": Example(
        "Lists the training runs that the server shows, with the curves of one of them.", query="points=100"
    ),
    "GET /api/cluster": Example("Shows the replicas of a cluster and the latest hand-overs between them."),
    "GET /metrics": Example("Returns counters and times in the format of Prometheus."),
}
