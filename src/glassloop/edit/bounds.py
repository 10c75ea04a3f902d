"""The checks of an edit's arguments: each error names the argument and says what was expected."""

from __future__ import annotations

from glassloop.arguments import check_count as check_count
from glassloop.arguments import check_number as check_number
from glassloop.arguments import check_text as check_text
from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError


def check_left_to_right(sampling: Sampling) -> None:
    """Raises if the options with which an edit draws ask for diffusion."""
    if sampling.diffusion is not None:
        raise SamplingError.about(
            "diffusion", "is given; edits draw from left to right, and proposer='diffusion' fills masks"
        )
