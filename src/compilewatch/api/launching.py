"""The launchers that settings name."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from compilewatch import extras, plugins
from compilewatch.config import Settings
from compilewatch.files import temporary_folder
from compilewatch.launchers import LAUNCHERS, Launcher
from compilewatch.records import Request, Result


@contextlib.contextmanager
def local_launcher(
    settings: Settings, names: Sequence[str], *, single: bool = False
) -> Iterator[Launcher]:
    """The launcher of this machine for these environments, closed at the end."""
    launcher = plugins.load(LAUNCHERS["local"])(
        jobs=settings.jobs,
        environments=tuple(names),
        cache=settings.cache_folder,
        single=single,
    )
    with launcher:
        yield launcher


@contextlib.contextmanager
def launcher_of(settings: Settings, names: Sequence[str]) -> Iterator[Launcher]:
    """The launcher that the settings name, closed at the end; for generated code the sandbox."""
    if (sandboxed := extras.SANDBOXED.get(settings.source)) is not None:
        yield plugins.load(sandboxed, f"--source {settings.source}").of(settings, tuple(names))
    elif settings.launcher == "local":
        with local_launcher(settings, names) as launcher:
            yield launcher
    else:
        launcher_class = plugins.find("launcher", LAUNCHERS, settings.launcher)
        with launcher_class.of(settings, names) as launcher:
            yield launcher


def evaluate_one(
    request: Request,
    settings: Settings,
    *,
    keep: Path | None = None,
    around: Callable[[Launcher], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Result:
    """Evaluate one request in a process of its own, and store nothing.

    With `keep`, the artifacts are copied to that folder. `around` is entered while it runs.
    """
    # Without a folder for them, the trace need not be written and rendered.
    request = msgspec.structs.replace(request, keep_artifacts=keep is not None)
    with (
        temporary_folder() as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
        around(launcher),
    ):
        (completed,) = launcher.run([request], Path(scratch))
        if keep is not None and completed.artifacts is not None:
            shutil.copytree(completed.artifacts, keep, dirs_exist_ok=True)
            for path in keep.rglob("*"):
                if path.is_file():
                    path.chmod(0o644)  # torch makes its trace readable by the owner only
    if keep is None:
        # The artifacts were deleted with the scratch folder.
        return msgspec.structs.replace(completed.result, artifacts=())
    return completed.result
