"""English text that every machine with Python has: the prose of the language reference that comes with the
standard library for `help()`. About 30,000 tokens; its hash is printed, since it differs between versions.
"""

from __future__ import annotations

import hashlib


def english() -> str:
    """Whole paragraphs of prose, each once; code, grammar and tables left out."""
    from pydoc_data.topics import topics

    paragraphs = [paragraph for name in sorted(topics) for paragraph in topics[name].split("\n\n")]
    prose = (" ".join(paragraph.split()) for paragraph in paragraphs if _is_prose(paragraph))
    return "\n\n".join(dict.fromkeys(prose))


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_prose(paragraph: str) -> bool:
    starts_flush = all(line[:1].isalpha() or line[:1] in '"(*' for line in paragraph.splitlines())
    ends_well = paragraph.rstrip().endswith((".", ":", "!", "?"))
    return len(paragraph) > 120 and starts_flush and ends_well and "::=" not in paragraph
