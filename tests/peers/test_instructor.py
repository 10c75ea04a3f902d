"""Instructor: pydantic models in its default mode, which demands a tool call, and in its others."""

from __future__ import annotations

from typing import Literal

import pytest

from .conftest import MODEL

instructor = pytest.importorskip("instructor")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=120)
    eyes: Literal["blue", "brown"]


ASK = [{"role": "user", "content": "Ann is 31 years old and has brown eyes. Extract the person."}]


def make(base, **options):
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
    return instructor.from_openai(client, **options)


# Not the modes without a grammar for the schema (JSON, MD_JSON), for which the model is too small.
@pytest.mark.parametrize("mode", [None, "TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_a_person(base, mode):
    options = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 120, "max_retries": 0}
    chosen = {} if mode is None else {"mode": getattr(instructor.Mode, mode)}
    person = make(base, **chosen).chat.completions.create(response_model=Person, **options)
    assert isinstance(person, Person)


def test_partial_objects_are_streamed(base):
    client = make(base)
    options = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 120, "max_retries": 0}
    *_, last = client.chat.completions.create_partial(response_model=Person, **options)
    assert last.eyes in ("blue", "brown") and 0 <= last.age <= 120
