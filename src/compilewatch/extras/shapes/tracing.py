"""`shapes` for one model: the sizes that are called, and the process that calls them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compilewatch.api.choose import local_launcher
from compilewatch.config import Settings
from compilewatch.errors import InputsError, UsageError
from compilewatch.extras.shapes.records import REPORT_FILE, ShapeReport
from compilewatch.records import Depth, Request, Status, Variants, Work


def shapes_of(
    request: Request, settings: Settings, calls: Sequence[Mapping[str, int]]
) -> ShapeReport:
    """Call a model with the sizes of each call, in a separate process; nothing is stored.

    Raises UsageError for a target or device that this is not about, InputsError where the model
    could not be called.
    """
    if request.target.name != "dynamo" or request.device is not None:
        raise UsageError("shapes is about Dynamo on the CPU: leave out --target and --device")
    request = msgspec.structs.replace(
        request,
        depth=Depth.REDUCED,
        variants=Variants.MAIN,
        keep_artifacts=True,
        work=Work(name="shapes", options={"calls": [dict(sizes) for sizes in calls]}),
    )
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
    ):
        (completed,) = launcher.run([request], Path(scratch))
        if completed.artifacts is None or completed.result.status is not Status.PASS:
            raise InputsError(f"{request.model.name}: {completed.result.detail}")
        content = (completed.artifacts / REPORT_FILE).read_bytes()
        return msgspec.json.decode(content, type=ShapeReport)


def calls_of_trace(text: str, where: str) -> list[dict[str, int]]:
    """Read sizes as served: one JSON object a line, such as `{"batch": 8, "sequence": 17}`.

    Raises UsageError for a line that is none, with its number.
    """
    calls = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                calls.append(msgspec.json.decode(line, type=dict[str, int]))
            except msgspec.DecodeError as error:
                raise UsageError(
                    f'{where}, line {number}: not sizes such as {{"batch": 8}}: {error}'
                ) from None
    if not calls:
        raise UsageError(f'{where} has no calls: one JSON line each, such as {{"batch": 8}}')
    return calls


def calls_of_values(vary: Sequence[str]) -> list[dict[str, int]]:
    """Return all combinations of the sizes in `batch=1,8,64` and `sequence=1..512`.

    Of a range, both ends and two in between. Raises UsageError for another spelling.
    """
    calls: list[dict[str, int]] = [{}]
    for text in vary:
        name, mark, values = text.partition("=")
        try:
            first, dots, last = values.partition("..")
            if dots:
                low, high = int(first), int(last)
                sizes = list(dict.fromkeys((low, low + 1, (low + high) // 2, high)))
            else:
                sizes = [int(value) for value in values.split(",")]
        except ValueError:
            sizes = []
        if not mark or not sizes or min(sizes) < 0:
            raise UsageError(f"--vary {text}: write NAME=FIRST..LAST or NAME=SIZE,SIZE")
        calls = [call | {name: size} for call in calls for size in sizes]
    return calls
