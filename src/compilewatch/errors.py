"""The one tree of exceptions. A failing model is data (a `Result`); a failing tool is one of these.

Each message is one line that says what happened and what to do; the CLI prints it and exits with
`exit_status`. Foreign exceptions are mapped at the boundary that meets them.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CompilewatchError(Exception):
    """Base: anything compilewatch refuses or fails to do."""

    exit_status = 2


class UsageError(CompilewatchError):
    """The request itself makes no sense: an impossible shard, an unknown target."""


class UnknownModelError(UsageError):
    """No source knows this model; the message names near ones."""


class ConfigError(CompilewatchError):
    """A settings, manifest, override or expectations file is malformed."""


class StoreError(CompilewatchError):
    """outputs/ cannot be read or written: full disk, no permission, an unknown schema."""


class SourceError(CompilewatchError):
    """A source of models cannot be read or reached."""


class InterpreterError(CompilewatchError):
    """A named environment is missing or broken."""


class LauncherError(CompilewatchError):
    """Requests cannot be run at all (as opposed to: a request failed)."""


class CompilerError(CompilewatchError):
    """A compiler outside of torch is missing or does not start (as opposed to: it refuses)."""


class InputsError(CompilewatchError):
    """Example inputs cannot be read, written or made."""


class SinkError(CompilewatchError):
    """A sink refuses a stored run."""


class UnreachableError(SinkError):
    """A sink cannot be reached, or is too busy: the same may work later."""


class TrainiumError(CompilewatchError):
    """The Trainium instance cannot be found, started or stopped; `code` is EC2's, if it has one."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class TrainiumUnavailableError(TrainiumError):
    """Nothing is wrong but that it is not to be had now: no capacity, no answer in time."""

    exit_status = 1


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1) -> str:
    """`; did you mean 'dynamo'?`, for messages about unknown names; empty if none is near."""
    near = get_close_matches(name, list(known), n=most, cutoff=0.55)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
