"""What is imported at start-up: torch never, and nothing heavy for `import glassloop` or `--help`.

Seconds are not asserted here (machines are noisy); what costs them is.
"""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "tokenizers",
    "jinja2",
    "huggingface_hub",
    "gguf",
    "fastapi",
    "uvicorn",
    "textual",
    "readline",
    "psycopg",
    "anywidget",
    "IPython",
)


def _loaded_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_importing_glassloop_loads_nothing_heavy():
    assert not _loaded_after("import glassloop") & set(HEAVY)


def test_help_loads_nothing_heavy():
    code = "import sys; sys.argv = ['glassloop', '--help']\nfrom glassloop.cli.main import app\n"
    loaded = _loaded_after(code + "try: app()\nexcept SystemExit: pass")
    assert "typer" in loaded and not loaded & set(HEAVY)


def test_generating_loads_only_what_it_needs():
    code = "from glassloop import LLM, Sampling\nLLM().generate('Hi', Sampling(max_tokens=1))"
    unneeded = {"torch", "transformers", "gguf", "jinja2", "llguidance", "huggingface_hub", "filelock"}
    unneeded |= {
        "rich",
        "fastapi",
        "typer",
        "asyncio",
        "difflib",
        "glassloop.model.config_hf",
        "glassloop.model.safetensors",
    }
    assert not _loaded_after(code) & unneeded


def test_torch_is_imported_only_for_its_op_set():
    """Its import takes seconds. Where there is no GPU, looking for one does not import it either."""
    code = "import glassloop, glassloop.cli.main, glassloop.server.app, glassloop.api.llm\n"
    code += "import glassloop.ops.torch\n"
    assert not _loaded_after(code) & {"torch", "triton"}
    blind = "from pathlib import Path\nglassloop.ops.torch._DRIVERS = (Path('/nowhere'),)\n"
    found = _loaded_after(f"{code}{blind}glassloop.ops.choose_ops()\n")
    assert "glassloop.ops.native.ops" in found and not found & {"torch", "triton"}
