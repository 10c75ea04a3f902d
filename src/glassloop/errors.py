"""The errors that people see.

Each message is one line that says what was wrong, where, and what was expected. The command line prints it
and ends with exit code 2; the Python API raises it.
"""


class GlassloopError(Exception):
    """Anything that glassloop refuses, for a reason its caller can mend."""


class ModelError(GlassloopError):
    """A model file that is damaged, lies about itself, or is of a kind we do not read."""


class TextError(GlassloopError):
    """Text, tokens or a chat template that cannot be turned into each other."""


class RegistryError(GlassloopError):
    """A model that cannot be found, fetched, verified or stored."""


class SamplingError(GlassloopError):
    """A decoding option that does not exist or is out of range."""


class TraceError(GlassloopError):
    """A recorded run that cannot be read, found, kept or held against a model."""


class StoreError(TraceError):
    """A store of runs that cannot be used now. `reason` says why, without the path that the message names."""

    def __init__(self, message: str, reason: str, *, busy: bool = False, full: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.busy = busy  # another process holds its lock
        self.full = full  # there is no room on the disk
