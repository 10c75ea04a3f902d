"""The engines that are compared: the name of each, its adapter and the environment it needs.

`variants` are options, tried in order until the engine loads and computes; the first is its default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peer:
    name: str
    adapter: str  # module in bench/peers
    script: str  # file in bench/first_token
    environment: str | None = None  # folder in .venv-bench; None: the environment of the project
    variants: tuple[dict[str, Any], ...] = field(default=({},))
    compiled: bool = False  # whether it is compiled for the instruction set of this machine

    @property
    def command(self) -> list[str]:
        return ["-m", f"bench.peers.{self.adapter}"]

    def first_token_command(self, model: Path, prompt: str, options: dict[str, Any]) -> list[str]:
        script = str(ROOT / "bench" / "first_token" / f"{self.script}.py")
        return [script, str(model), prompt, *(str(value) for value in options.values())]


OURS = Peer("glassloop", "ours", "with_glassloop")
# Both use AMX if the processor reports it, and crash if the virtual machine then does not allow it. The
# second variant avoids AMX: llama.cpp keeps weights as stored in the file, OpenVINO computes in float32.
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
