"""The versions that are installed are allowed, and none is allowed that is known to have a hole."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = {
    canonicalize_name(each.name): each for each in map(Requirement, SETTINGS["project"]["dependencies"])
}
BUILT_WITH = {
    canonicalize_name(each.name): each for each in map(Requirement, SETTINGS["build-system"]["requires"])
}
PINNED = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
}
# The first versions without denials of service and escapes that are known of those before them.
MENDED = {
    "starlette": "0.49.1",
    "h11": "0.16.0",
    "jinja2": "3.1.6",
    "filelock": "3.20.3",
    "setuptools": "78.1.1",
}


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_the_pinned_version_is_allowed(name):
    assert REQUIRED[name].specifier.contains(PINNED[name])


@pytest.mark.parametrize("name", sorted(MENDED))
def test_no_version_with_a_known_hole_is_allowed(name):
    specifier = (REQUIRED | BUILT_WITH)[name].specifier
    bounds = [Version(each.version) for each in specifier if each.operator == ">="]
    assert bounds and max(bounds) >= Version(MENDED[name])
