"""All exceptions of compilewatch. A failing model is data (a `Result`); a failing tool raises.

Each message is one line that says what happened and what to do; the CLI prints it and exits with
`exit_status`. Exceptions of libraries are converted where the library is called.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class CompilewatchError(Exception):
    """Base class of all errors that compilewatch raises on purpose."""

    exit_status = 2


class OsErrorsAs:
    """A context in which an OSError becomes an error of ours: a text, and the system's reason.

    The file is named with it, unless the text names it.
    """

    def __init__(self, kind: type[CompilewatchError], text: str) -> None:
        self._kind, self._text = kind, text

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            file = str(error.filename or "")
            about = "" if file in self._text else f" ({file})"
            raise self._kind(f"{self._text}{about}: {error.strerror or error}") from None


class UsageError(CompilewatchError):
    """The arguments are invalid, such as an impossible shard or an unknown target."""


class UnknownModelError(UsageError):
    """No source has this model or family, `name`; the message suggests similar names."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class ConfigError(CompilewatchError):
    """A settings, manifest, override or expectations file is malformed."""


class MissingModuleError(ConfigError):
    """The module of a person's own model is not found: a package may not be installed."""


class MissingExtraError(CompilewatchError):
    """A package of an extra is not installed; the message says what to install."""


class StoreError(CompilewatchError):
    """outputs/ cannot be read or written: full disk, no permission, unknown schema version."""


class SourceError(CompilewatchError):
    """A source of models cannot be read or reached."""


class InterpreterError(CompilewatchError):
    """A named environment is missing or broken."""


class LauncherError(CompilewatchError):
    """No request can be evaluated at all. A single request that fails is a `Result` instead."""


class CompilerError(CompilewatchError):
    """A compiler other than torch is missing or does not start. (A failed compile is a result.)"""


class InputsError(CompilewatchError):
    """Example inputs cannot be read, written or generated."""


class UnknownArgumentsError(InputsError):
    """The forward needs arguments that nothing makes, `names`; `made` are its other inputs.

    `where` are the options with which the model is named, such as ` --environment NAME`.
    """

    def __init__(self, model: str, names: tuple[str, ...], inputs: Any, where: str = "") -> None:
        what = f"cannot infer {', '.join(names)}" if names else "no tensor would reach the model"
        super().__init__(f"{model}: {what}: {_saving(model, where, 'fill in')}")
        self.names, self.made = names, inputs


class WrongGuessError(InputsError):
    """A call with guessed inputs, `made`, failed with `problem`: the guess may be the cause."""

    def __init__(self, model: str, inputs: Any, problem: str, where: str = "") -> None:
        guessed = "; ".join(inputs.guessed) or "no tensor"
        super().__init__(
            f"{model}: called with guessed inputs ({guessed}): {problem}: "
            f"{_saving(model, where, 'correct')}"
        )
        self.made, self.problem = inputs, problem


def _saving(model: str, where: str, what: str) -> str:
    return (
        f"`compilewatch inputs {model}{where} --save FILE` writes a file to {what}, for --inputs "
        "FILE (or name a callable in the manifest, or as --inputs MODULE:FUNCTION)"
    )


class SinkError(CompilewatchError):
    """A sink rejects a stored run, or is not configured correctly."""


class UnreachableError(SinkError):
    """A sink cannot be reached or is overloaded; the same publication may succeed later."""


class SelectionError(SinkError):
    """A sink holds another selection of models, which the run would replace."""


class TrainiumError(CompilewatchError):
    """The Trainium instance cannot be found, started or stopped.

    `code` is the error code of EC2, or empty.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class TrainiumUnavailableError(TrainiumError):
    """The instance is temporarily unavailable: no capacity, or no response in time."""

    exit_status = 1


class ProviderError(CompilewatchError):
    """A language model cannot be used: no credentials, no access, no such model."""


class SandboxError(CompilewatchError):
    """This machine cannot confine unreviewed code, so that it is not run."""


class ExecutorError(CompilewatchError):
    """The executor rejects a call, or another service has its address.

    `status` is the HTTP status of a rejection, or 0.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ExecutorUnavailableError(ExecutorError):
    """The executor cannot be reached or has not finished in time; try again later."""

    exit_status = 1


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1) -> str:
    """Return a suggestion such as `; did you mean 'dynamo'?`, or "" if no name is similar.

    At most `most` names are suggested.
    """
    near = get_close_matches(name, list(known), n=most, cutoff=0.55)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
