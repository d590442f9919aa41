"""`shapes` for one model: the sizes that are called, and the process that calls them."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from compilewatch.api.choose import local_launcher
from compilewatch.config import Settings
from compilewatch.environments import Environments, last_line, worker_variables
from compilewatch.errors import InputsError, UsageError
from compilewatch.extras.shapes.records import REPORT_FILE, OneGraph, PlanProof, ShapeReport
from compilewatch.launchers import Launcher
from compilewatch.records import Depth, Request, Status, Tier, Variants, Work

PROOF_SECONDS = 900.0

_WAITING = """
import sys, torch, torch._dynamo
try:
    import transformers.modeling_utils
except ImportError:
    pass
exec(compile(sys.stdin.read(), "plan.py", "exec"), {"__name__": "__main__"})
"""


class _Counted(msgspec.Struct):
    first: int
    graphs: int
    sample: int


class _Compared(msgspec.Struct):
    first: int
    graphs: int
    compared: tuple[dict[str, int], ...]
    differences: list[tuple[dict[str, int], str]]
    late: tuple[dict[str, int], ...]


class _Printed(msgspec.Struct):
    counted: _Counted
    compared: _Compared


def shapes_of(
    request: Request,
    settings: Settings,
    served: Served,
    *,
    one_graph: bool = False,
    generate: bool = False,
) -> ShapeReport:
    """Call a model with sizes as they are served, in a separate process; nothing is stored.

    With `one_graph`, another process also runs one graph without guards, on real tensors; with
    `generate`, texts are generated too.
    Raises UsageError for a target or device that this is not about, InputsError where the model
    could not be called.
    """
    if request.target.name != "dynamo" or request.device is not None:
        raise UsageError("shapes is about Dynamo on the CPU: leave out --target and --device")
    environments = Environments(settings.cache_folder)
    interpreter = environments.interpreter(request.target.environment)
    variables = worker_variables(interpreter)
    unconfirmed: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
    ):
        while True:
            with prover(str(interpreter.path), variables) as prove:
                report = _report(
                    launcher, request, served, Path(scratch), list(unconfirmed), generate=generate
                )
                if (plan := report.plan) is not None:
                    proof = prove(plan.script)
                    if isinstance(proof, str):
                        unconfirmed[plan.title] = proof
                        continue
                    plan = msgspec.structs.replace(plan, proof=proof)
            graph = None
            if one_graph:
                graph = _one_graph(launcher, request, served, Path(scratch), report)
            return msgspec.structs.replace(
                report, plan=plan, unconfirmed=unconfirmed, one_graph=graph
            )


def _report(
    launcher: Launcher,
    request: Request,
    served: Served,
    scratch: Path,
    without: Sequence[str],
    *,
    generate: bool,
) -> ShapeReport:
    options = {
        "domains": served.domains,
        "calls": served.calls,
        "without": without,
        "generate": generate,
    }
    request = _reduced(request, "shapes", options)
    return msgspec.json.decode(_content(launcher, request, scratch), type=ShapeReport)


def _one_graph(
    launcher: Launcher, request: Request, served: Served, scratch: Path, report: ShapeReport
) -> OneGraph:
    """Run one graph without guards, on real tensors."""
    ends = [(limit.name, limit.size) for limit in report.limits]
    request = _reduced(request, "one-graph", {"domains": served.domains, "ends": ends})
    request = msgspec.structs.replace(request, tier=Tier.REAL)
    return msgspec.json.decode(_content(launcher, request, scratch), type=OneGraph)


def _reduced(request: Request, name: str, options: dict[str, Any]) -> Request:
    return msgspec.structs.replace(
        request,
        depth=Depth.REDUCED,
        variants=Variants.MAIN,
        keep_artifacts=True,
        work=Work(name=name, options=options),
    )


def _content(launcher: Launcher, request: Request, scratch: Path) -> bytes:
    (completed,) = launcher.run([request], scratch)
    if completed.artifacts is None or completed.result.status is not Status.PASS:
        raise InputsError(f"{request.model.name}: {completed.result.detail}")
    return (completed.artifacts / REPORT_FILE).read_bytes()


@contextlib.contextmanager
def prover(python: str, variables: dict[str, str]) -> Iterator[Callable[[str], PlanProof | str]]:
    """Yield what runs the script of a plan in a separate process: a proof, or why there is none.

    The process imports torch before it gets the script, while the plan is made.
    """
    with subprocess.Popen(
        [python, "-B", "-c", _WAITING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        start_new_session=True,
    ) as process:

        def prove(script: str) -> PlanProof | str:
            try:
                out, err = process.communicate(script.encode(), timeout=PROOF_SECONDS)
            except subprocess.TimeoutExpired:
                return f"not within {PROOF_SECONDS:g} s"
            try:
                found = msgspec.json.decode(out.splitlines()[-1], type=_Printed)
            except (IndexError, msgspec.DecodeError):
                return last_line(err)
            for sizes, difference in found.compared.differences:
                return f"{', '.join(f'{n} {s}' for n, s in sizes.items())}: {difference}"
            if process.returncode:
                return f"compiles more than its first calls: {found}"
            return PlanProof(
                sample=found.counted.sample,
                compared=found.compared.compared,
                late=found.compared.late,
            )

        try:
            yield prove
        finally:
            process.kill()


class Served(NamedTuple):
    """The sizes that are served: of each dimension whether they are (first, last), or all.

    Without `calls`, those are found that tell most.
    """

    domains: dict[str, tuple[bool, tuple[int, ...]]]
    calls: list[dict[str, int]]


def served_by_trace(text: str, where: str) -> Served:
    """Read sizes as served: one JSON object a line, such as `{"batch": 8, "sequence": 17}`.

    Raises UsageError for a line that is none, or is about other dimensions, with its number.
    """
    calls: list[dict[str, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                calls.append(msgspec.json.decode(line, type=dict[str, int]))
            except msgspec.DecodeError as error:
                raise UsageError(
                    f'{where}, line {number}: not sizes such as {{"batch": 8}}: {error}'
                ) from None
            if calls[-1].keys() != calls[0].keys() or min(calls[-1].values(), default=-1) < 0:
                raise UsageError(f"{where}, line {number}: not sizes of {', '.join(calls[0])}")
    if not calls:
        raise UsageError(f'{where} has no calls: one JSON line each, such as {{"batch": 8}}')
    ends = {name: tuple(call[name] for call in calls) for name in calls[0]}
    return Served(
        {name: (True, (min(values), max(values))) for name, values in ends.items()}, calls
    )


def served_by_values(vary: Sequence[str]) -> Served:
    """Read `batch=1,8,64` and `sequence=1..512`; of lists alone, all combinations are called.

    Raises UsageError for another spelling.
    """
    domains: dict[str, tuple[bool, tuple[int, ...]]] = {}
    for text in vary:
        name, _, values = text.partition("=")
        first, dots, last = values.partition("..")
        try:
            sizes = tuple(map(int, (first, last) if dots else values.split(",")))
        except ValueError:
            sizes = ()
        if not name or not sizes or min(sizes) < 0 or (dots and sizes[0] >= sizes[1]):
            raise UsageError(f"--vary {text}: write NAME=FIRST..LAST or NAME=SIZE,SIZE")
        domains[name] = (bool(dots), sizes)
    if any(is_range for is_range, _ in domains.values()):
        return Served(
            {name: (dots, tuple(sorted(sizes))) for name, (dots, sizes) in domains.items()}, []
        )
    product = itertools.product(*(sizes for _, sizes in domains.values()))
    calls = [dict(zip(domains, sizes, strict=True)) for sizes in product]
    return Served(
        {name: (False, tuple(sorted(sizes))) for name, (_, sizes) in domains.items()}, calls
    )
