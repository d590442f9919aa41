"""The Protocol of a compile target; `contract.targets` lists the targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from compilewatch import plugins
from compilewatch.contract.targets import entry
from compilewatch.records import Request, Shapes, TargetOutcome, Tier

if TYPE_CHECKING:
    from compilewatch.worker.subject import Subject


class CompileTarget(Protocol):
    """One compile target, which is a column of the model × target matrix.

    `tiers` are the tiers in which it can reach a verdict; it does not run in others.
    """

    name: str
    tiers: tuple[Tier, ...]

    def missing(self) -> str | None:
        """Return None if this environment can run the target, otherwise what is missing."""
        return None

    def unable(self) -> str | None:
        """Return None if the target can reach a verdict here, otherwise why not.

        This differs from `missing` for a target that produces useful artifacts without a verdict.
        """
        return self.missing()

    def prepare(self, request: Request, folder: Path) -> str | None:  # noqa: ARG002
        """Make this process ready for a request, before its model is built.

        `folder` is that of the request. Returns None, or what makes a verdict impossible here.
        """
        return None

    def run(self, subject: Subject) -> TargetOutcome:
        """Enter `Phase.COMPILE` (and later phases as needed), compile, and return the outcome.

        An exception of the compiler about the model is a `TargetOutcome` with the status `error`.
        Raises `FakeUnsupportedError` if fake tensors cannot lead to a verdict but real ones may.
        """
        ...

    def shapes(self, subject: Subject) -> Shapes | None:  # noqa: ARG002
        """Return what the standard trace compiles, None for a target without such a trace."""
        return None

    def probe(self, subject: Subject) -> TargetOutcome:
        """Return what can be said of a model that cannot run on fake tensors of a declared device.

        The subject has real tensors on the CPU. Raises FakeUnsupportedError as `run` does.
        """
        from compilewatch.worker.device import on_declared_device

        return self.run(on_declared_device(subject))


class FakeUnsupportedError(Exception):
    """The model reads a value that fake tensors do not have; real tensors may work."""


def check_device_not_needed(subject: Subject, text: str) -> None:
    """Raise FakeUnsupportedError if a message says that the declared device was needed itself."""
    from compilewatch.worker.device import DEVICE_NEEDED

    if subject.fake_mode is not None and subject.request.device is not None:
        needed = DEVICE_NEEDED.search(text)
        if needed is not None:
            raise FakeUnsupportedError(f"an operator needs the device itself ({needed[0]})")


def load_target(name: str) -> CompileTarget:
    """Import one target. Raises UsageError for an unknown name."""
    return plugins.load(entry(name).implementation)()  # type: ignore[no-any-return]
