"""`fix` for one model: the processes behind the search, and the script that judges it."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.api.choose import local_launcher
from compilewatch.config import Settings
from compilewatch.contract import processes
from compilewatch.environments import Environments, last_line, package_folder, worker_variables
from compilewatch.errors import UsageError
from compilewatch.extras.fixes import records
from compilewatch.extras.fixes.candidates import Place
from compilewatch.extras.fixes.rewriting import patch
from compilewatch.extras.fixes.search import Changes, Limits, Report, Search, names_of
from compilewatch.launchers import Launcher
from compilewatch.records import Depth, Request, Result, Status, Tier, Variants, Work

VERIFICATION_SECONDS = 900.0


def find_fix(
    request: Request,
    settings: Settings,
    *,
    max_evaluations: int | None = None,
    max_seconds: float | None = None,
    rewrites: bool = True,
    cost: bool = False,
    shapes: bool = False,
    report: Report = lambda *_: None,
) -> records.Fix:
    """Search for changes that remove the graph breaks of a model, and verify them.

    With `shapes`, it is about lines that need a compilation for another size instead. Each
    evaluation is a separate process on this machine; nothing is stored. With `cost`, calls with a
    verified fix and without it are timed. Raises UsageError for a target or device that the
    verification is not about.
    """
    target = request.target
    if target.name != "dynamo" or target.backend is not None:
        raise UsageError("fix is about graph breaks: leave out --target, or name dynamo")
    if request.device is not None:
        raise UsageError("fix is verified on the CPU: leave out --device")
    limits = Limits(
        evaluations=max_evaluations or Limits.evaluations, seconds=max_seconds or Limits.seconds
    )
    with searching(settings, request.target.environment, shapes=shapes) as find:
        fix = find(request, limits, rewrites=rewrites, report=report)
        if cost and fix.verification is not None:
            report("timing calls", len(fix.trials))
            fix = msgspec.structs.replace(fix, cost=find.cost(request, fix.script))
        return fix


class Finder:
    """Searches for fixes with one warm worker; `alone` if no other one works beside it.

    With `shapes`, for those of lines that need a compilation for another size.
    """

    def __init__(
        self,
        launcher: Launcher,
        environments: Environments,
        scratch: Path,
        *,
        alone: bool,
        shapes: bool = False,
    ) -> None:
        self._launcher, self._environments, self._scratch = launcher, environments, scratch
        self._alone, self._shapes = alone, shapes
        self._read_values: set[str] = set()

    def __call__(
        self,
        request: Request,
        limits: Limits,
        *,
        rewrites: bool = True,
        report: Report = lambda *_: None,
    ) -> records.Fix:
        place = Place(request=_reduced(request), source_of=self._source_of(request))
        fix = Search(
            lambda several: self.evaluate(request, several),
            lambda changes: self.verify(request, changes),
            place,
            limits,
            rewrites=rewrites,
            ahead=self._alone,
            report=report,
        ).run()
        edits = [edit for change in fix.changes for edit in change.edits]
        fix = msgspec.structs.replace(fix, patch=patch(edits, place.source_of))
        if fix.status not in records.IN_VAIN or self._shapes:
            return fix
        # The submodules to compile instead of the model; none if that cannot be said.
        written, _ = self._written("fix-regions", records.REGIONS_FILE, request, {})
        regions = msgspec.json.decode(written or b"[]", type=tuple[records.Region, ...])
        return msgspec.structs.replace(fix, regions=regions)

    def evaluate(self, request: Request, several: Sequence[Changes]) -> list[Result]:
        """Return what Dynamo does with the model under each of the changes, in processes."""
        tier = Tier.REAL if request.key in self._read_values else request.tier
        works = [
            Work(
                name="fix",
                options={"changes": msgspec.to_builtins(changes), "shapes": self._shapes},
            )
            for changes in several
        ]
        requests = [_reduced(request, work=work, tier=tier) for work in works]
        results = [completed.result for completed in self._launcher.run(requests, self._scratch)]
        if any(result.tier is Tier.REAL for result in results):
            self._read_values.add(request.key)  # fake tensors would fail again
        order = list(map(msgspec.json.encode, works))  # each ends when it does
        return sorted(results, key=lambda r: order.index(msgspec.json.encode(r.request.work)))

    def verify(self, request: Request, changes: Changes) -> tuple[str, records.Verification]:
        """Return the script that verifies changes, and what it found in a separate process."""
        title = f"{request.model.name} with {names_of(changes)}"
        options = {
            "changes": msgspec.to_builtins(changes),
            "title": title,
            "shapes": self._shapes,
        }
        real = msgspec.structs.replace(request, tier=Tier.REAL)
        written, detail = self._written("fix-script", records.SCRIPT_FILE, real, options)
        if written is None:
            return "", _failed("the script is written", detail)
        chosen = self._environments.interpreter(request.target.environment)
        script, variables = written.decode(), worker_variables(chosen)
        return script, run_verification(script, str(chosen.path), variables, alone=self._alone)

    def _written(
        self, work: str, file: str, request: Request, options: dict[str, Any]
    ) -> tuple[bytes | None, str]:
        """Return the file that a work of the worker writes; or None, and why there is none."""
        request = _reduced(request, work=Work(name=work, options=options), keep_artifacts=True)
        (completed,) = self._launcher.run([request], self._scratch)
        if completed.artifacts is None or completed.result.status is not Status.PASS:
            return None, completed.result.detail
        return (completed.artifacts / file).read_bytes(), ""

    def cost(self, request: Request, script: str) -> records.FixCost | None:
        """Return what the script says of the time of calls; None if it says nothing."""
        chosen = self._environments.interpreter(request.target.environment)
        try:
            out, _ = _ran(script, ["--cost"], str(chosen.path), worker_variables(chosen))
            return msgspec.json.decode(out.splitlines()[-1], type=records.FixCost)
        except (subprocess.TimeoutExpired, IndexError, msgspec.DecodeError):
            return None

    def _source_of(self, request: Request) -> Callable[[str], str | None]:
        folders = [Path.cwd(), *map(Path, getattr(request.model.build, "python_path", ()))]
        chosen = self._environments.interpreter(request.target.environment)
        folders.append(package_folder(chosen))

        def read(file: str) -> str | None:
            for folder in folders:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    return (folder / file).read_text()
            return None

        return read


def _reduced(request: Request, **fields: Any) -> Request:
    """The request as it is evaluated for a fix: with few layers, and the main inputs."""
    fields = {"depth": Depth.REDUCED, "variants": Variants.MAIN, "keep_artifacts": False} | fields
    return msgspec.structs.replace(request, **fields)


@contextlib.contextmanager
def searching(
    settings: Settings, environment: str, *, alone: bool = True, shapes: bool = False
) -> Iterator[Finder]:
    """Yield a finder of fixes, whose worker stays warm until the end.

    If it is `alone`, two evaluations run at a time, and two requirements of a verification.
    """
    at_a_time = msgspec.structs.replace(settings, jobs=2 if alone else 1)
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(at_a_time, [environment], single=True) as launcher,
    ):
        environments = Environments(settings.cache_folder)
        yield Finder(launcher, environments, Path(scratch), alone=alone, shapes=shapes)


def run_verification(
    script: str, python: str, variables: dict[str, str], *, alone: bool
) -> records.Verification:
    """Run the script in a fresh process, without compilewatch, and read its figures."""
    options = ["--json"] if alone else ["--json", "--one-at-a-time"]
    try:
        out, err = _ran(script, options, python, variables)
    except subprocess.TimeoutExpired:
        return _failed(records.LATE, f"not within {VERIFICATION_SECONDS:g} s")
    try:
        return msgspec.json.decode(out.splitlines()[-1], type=records.Verification)
    except (IndexError, msgspec.DecodeError):
        return _failed("the verification runs", last_line(err))


def _ran(
    script: str, options: Sequence[str], python: str, variables: dict[str, str]
) -> tuple[bytes, bytes]:
    """Run a script; return its output and errors. Raises TimeoutExpired.

    It forks, and forks of a model that hangs would outlive it: all of its session are ended.
    """
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        path = Path(folder) / records.SCRIPT_FILE
        path.write_text(script)
        command = [python, "-B", str(path), *options]
        ended = processes.run(command, seconds=VERIFICATION_SECONDS, env=variables)
        return ended.stdout, ended.stderr


def _failed(name: str, detail: str) -> records.Verification:
    return records.Verification(
        steps=(records.VerificationStep(name=name, passed=False, detail=detail),)
    )
