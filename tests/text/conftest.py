"""The real vocabularies, read once a worker; the files come through the registry, pulled if need be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from glassloop.model.gguf import GGUFFile
from glassloop.model.registry import fetch
from glassloop.text.tokenizer import Tokenizer

settings.register_profile(
    "text", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("text")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return fetch("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma_gguf() -> Path:
    return fetch("gemma-3-270m")


@pytest.fixture(scope="session")
def cl100k_ranks() -> Path:
    return fetch("cl100k_base")


@pytest.fixture(scope="session")
def o200k_ranks() -> Path:
    return fetch("o200k_base")


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_gguf: Path) -> dict[str, Any]:
    return GGUFFile(smollm2_gguf).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata, "SmolLM2")


@pytest.fixture(scope="session")
def gemma(gemma_gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(gemma_gguf).metadata, "Gemma")


@pytest.fixture(scope="session")
def cl100k(cl100k_ranks: Path) -> Tokenizer:
    return Tokenizer.from_tiktoken(cl100k_ranks, "cl100k_base")


@pytest.fixture(scope="session")
def o200k(o200k_ranks: Path) -> Tokenizer:
    return Tokenizer.from_tiktoken(o200k_ranks, "o200k_base")


@pytest.fixture(scope="session", params=["smollm2", "gemma", "cl100k", "o200k"])
def real_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each of the four in turn."""
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer
