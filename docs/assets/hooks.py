"""Hooks of the docs site: pages of the repository that are not in docs/ are added, and the table of all
options is made from the declarations of `Sampling`. Nothing of Glassloop is imported: it need not be
installed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ABOVE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")  # pages from above docs/
OPTIONS = "<!-- options -->"


def on_files(files: Files, config: Any, **unused: Any) -> Files:
    """Adds the pages from above docs/, with their links changed to the places on the site."""
    for name in ABOVE:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, **unused: Any) -> str:
    """Changes links to pages from above docs/, and puts in the table of options."""
    if OPTIONS in markdown:
        markdown = markdown.replace(OPTIONS, options_table())
    return re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, ABOVE))})", r"](\1", markdown)


def on_post_build(config: Any, **unused: Any) -> None:
    """Writes the index of the search as a script, which a page that is opened as a file can load."""
    folder = Path(config["site_dir"]) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def options_table() -> str:
    """Returns all fields of `Sampling` with their types, defaults and help texts."""
    source = (ROOT / "src" / "glassloop" / "decode" / "sampling.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    sampling = next(node for node in classes if node.name == "Sampling")
    rows = ["| option | type | default | what it does |", "|---|---|---|---|"]
    for field in sampling.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
            name, call = ast.unparse(field.target), field.value
            given = {each.arg: each.value for each in call.keywords}
            texts = [each for each in call.args if isinstance(each, ast.Constant)]
            told = ast.literal_eval(given["help"] if "help" in given else texts[-1])
            default = ast.unparse(call.args[0]) if call.args and "help" in given else "None"
            default = "{}" if "Mapping" in ast.unparse(field.annotation) and "help" in given else default
            kind = ast.unparse(field.annotation).replace("|", "\\|")
            rows.append(f"| `{name}` | `{kind}` | `{default}` | {told.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)
