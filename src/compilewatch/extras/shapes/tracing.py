"""`shapes` for one model: the sizes that are served, the processes that call them, and buckets.

Buckets are a few sizes to which calls are padded, for compilers that take one shape a graph.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from compilewatch.api.choose import local_launcher
from compilewatch.config import Settings, where_to_set
from compilewatch.environments import Environments, last_line, worker_variables
from compilewatch.errors import InputsError, UsageError
from compilewatch.extras.shapes.records import (
    REPORT_FILE,
    Buckets,
    OneGraph,
    PlanProof,
    ShapeReport,
)
from compilewatch.launchers import Launcher
from compilewatch.records import Depth, Request, Status, Tier, Variants, Work

PROOF_SECONDS = 900.0

MOST_BUCKETS = 8

_WAITING = """
import ctypes, os, resource, signal, sys
def end_with_parent():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # prctl.h
end_with_parent()
os.register_at_fork(after_in_child=end_with_parent)
import torch, torch._dynamo
try:
    import transformers.modeling_utils
except ImportError:
    pass
torch.compile(torch.nn.Linear(1, 1), backend="aot_eager")(torch.ones(1, 1)).sum().backward()
try:
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[5]) * resource.getpagesize()
    wanted, (_, most) = mapped + int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
except OSError:
    pass  # only Linux has the file, and counts all of a process's own memory
exec(compile(sys.stdin.read(), "plan.py", "exec"))
"""


class _Printed(PlanProof, frozen=True, kw_only=True):
    """What the script of a plan prints: a proof, and what may speak against it.

    `graphs` are those after the first calls and after all, of both parts of the script.
    """

    differences: tuple[tuple[dict[str, int], str], ...]
    graphs: tuple[int, ...]


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
    report: ShapeReport | None = None
    unconfirmed: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
    ):
        while True:
            memory = settings.memory_limit_bytes
            with prover(str(interpreter.path), variables, memory) as prove:
                options = {
                    "domains": served.domains,
                    "calls": served.calls,
                    "known": report,
                    "without": list(unconfirmed),
                    "generate": generate,
                }
                content = _content(launcher, _reduced(request, "shapes", options), Path(scratch))
                report = msgspec.json.decode(content, type=ShapeReport)
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


def _one_graph(
    launcher: Launcher, request: Request, served: Served, scratch: Path, report: ShapeReport
) -> OneGraph:
    """Run one graph without guards, on real tensors."""
    options = {"domains": served.domains, "limits": report.limits}
    request = _reduced(request, "one-graph", options)
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
    result = completed.result
    if completed.artifacts is None or result.status is not Status.PASS:
        hint = ""
        if result.status is Status.TIMEOUT:
            place = where_to_set("deadlines.compile_seconds")
            hint = f"; for more time, set {place}, and total_seconds in the same way"
        raise InputsError(f"{request.model.name}: {result.detail}{hint}")
    return (completed.artifacts / REPORT_FILE).read_bytes()


@contextlib.contextmanager
def prover(
    python: str, variables: dict[str, str], memory_bytes: int
) -> Iterator[Callable[[str], PlanProof | str]]:
    """Yield what runs the script of a plan in a separate process: a proof, or why there is none.

    The process imports all of torch before it gets the script, while the plan is made. The script
    may take `memory_bytes`, so that the results of a large vocabulary do not fill the machine.
    """
    with subprocess.Popen(
        [python, "-B", "-P", "-c", _WAITING, str(memory_bytes)],
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
                printed = msgspec.json.decode(out.splitlines()[-1], type=_Printed)
            except (IndexError, msgspec.DecodeError):
                if "allocate memory" in (problem := last_line(err)):
                    return "needs more memory than memory_limit_gib in compilewatch.toml allows"
                return problem
            for sizes, difference in printed.differences:
                return f"{', '.join(f'{n} {s}' for n, s in sizes.items())}: {difference}"
            if len(set(printed.graphs)) > 1:
                return f"compiles more than its first calls: {printed.graphs}"
            return msgspec.convert(printed, PlanProof, from_attributes=True)

        try:
            yield prove
        finally:
            with contextlib.suppress(ProcessLookupError):  # with the fork that counts
                os.killpg(process.pid, signal.SIGKILL)


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


def frequencies(served: Served) -> dict[str, dict[int, int]]:
    """Return how often each size of each dimension is served, in ascending order.

    Without calls, all sizes are served equally often.
    """
    counts = {
        name: Counter(call[name] for call in served.calls)
        or Counter(range(sizes[0], sizes[1] + 1) if is_range else sizes)
        for name, (is_range, sizes) in served.domains.items()
    }
    return {name: dict(sorted(sizes.items())) for name, sizes in counts.items()}


def buckets_of(frequency: Mapping[int, int]) -> tuple[Buckets, ...]:
    """Return the best one bucket, two, and so on, up to `MOST_BUCKETS`: they compute the least.

    `frequency` is how often each size is served, in ascending order. It is exact: the last bucket
    is the largest size, and what is below it is a smaller problem. That end never moves down where
    sizes are added, so that it is searched by halves.
    """
    sizes, counts = list(frequency), [0, *itertools.accumulate(frequency.values())]
    served = sum(size * count for size, count in frequency.items())
    cost: list[float] = [0, *(math.inf for _ in sizes)]  # of the first sizes, computed at least
    chosen: list[tuple[int, ...]] = [() for _ in counts]
    results: list[Buckets] = []
    for number in range(1, min(MOST_BUCKETS, len(sizes)) + 1):
        below, buckets = cost, chosen
        cost, chosen = [math.inf] * len(counts), [()] * len(counts)
        spans = [(number, len(sizes), number - 1, len(sizes) - 1)]
        while spans:  # the number of sizes, and of those below the last bucket: from, to
            low, high, least, most = spans.pop()
            middle = (low + high) // 2
            cost[middle], end = min(
                (below[end] + sizes[middle - 1] * (counts[middle] - counts[end]), end)
                for end in range(least, min(most, middle - 1) + 1)
            )
            chosen[middle] = (*buckets[end], sizes[middle - 1])
            sides = ((low, middle - 1, least, end), (middle + 1, high, end, most))
            spans += [span for span in sides if span[0] <= span[1]]
        best = chosen[-1]
        worst = max((1 - size / best[bisect_left(best, size)] for size in sizes if size), default=0)
        padding = 1 - served / max(cost[-1], 1)
        results.append(Buckets(sizes=best, padding=padding, worst=worst))
    return tuple(results)
