"""The engines that take part: how each is called, where its adapter is and which environment it needs.

`variants` are options tried one after another until the engine loads and computes; the first is its default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peer:
    name: str
    adapter: str  # module of bench/peers
    script: str  # of bench/first_token
    environment: str | None = None  # folder of .venv-bench; None is the project's own
    variants: tuple[dict[str, Any], ...] = field(default=({},))
    compiled: bool = False  # on this machine, for its instructions

    @property
    def command(self) -> list[str]:
        return ["-m", f"bench.peers.{self.adapter}"]

    def first_token_command(self, model: Path, prompt: str, options: dict[str, Any]) -> list[str]:
        script = str(ROOT / "bench" / "first_token" / f"{self.script}.py")
        return [script, str(model), prompt, *(str(value) for value in options.values())]


OURS = Peer("glassloop", "ours", "with_glassloop")
# Both use AMX where the processor reports it, and die where the virtual machine then does not allow it; the
# second variant does without: llama.cpp keeps weights as they are in the file, OpenVINO computes in float32.
LLAMA = Peer(
    "llama.cpp",
    "llama_cpp",
    "with_llama_cpp",
    "llama-cpp",
    variants=({}, {"extra_buffers": False}),
    compiled=True,
)
OPENVINO = Peer("openvino", "openvino", "with_openvino", "openvino", variants=({}, {"precision": "f32"}))
TRANSFORMERS = Peer("transformers", "transformers", "with_transformers", "transformers")

PEERS = {peer.name: peer for peer in (OURS, LLAMA, OPENVINO, TRANSFORMERS)}
