"""English text that every Python installation has: the prose of the language reference, included for
`help()`. About 30,000 tokens; its hash is printed, since it differs between versions.
"""

from __future__ import annotations

import hashlib


def english() -> str:
    """Returns whole paragraphs of prose, each once, without code, grammar and tables."""
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
