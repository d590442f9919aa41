"""What compilewatch says of the modules of breaks.py, from a process like a worker.

The process of a test may have several threads, and then has no forks. Run with an empty folder as
argument. Prints one JSON object, case name -> `Evaluated`.
"""

import gc
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from breaks import CASES, Case, LazyLayer
from torch import nn

from compilewatch.contract.failures import RecordedError
from compilewatch.records import (
    FactoryBuild,
    Mode,
    ModelSpec,
    Phase,
    Request,
    Result,
    Target,
    TargetOutcome,
    Tier,
)
from compilewatch.worker import forked, reproduce
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.process import warmup
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.target import DynamoTarget

CASES_FOLDER = Path(__file__).parent


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes on real and on fake tensors, None where those give none, and the script."""

    real: TargetOutcome
    fake: TargetOutcome | None
    script: str


def request_of(name: str, /, **target: Any) -> Request:
    """A request for a case by its name, on real tensors."""
    build = FactoryBuild(factory=f"broken:{name}", path=str(CASES_FOLDER), inputs="broken:inputs")
    model = ModelSpec(source="test", name=name, build=build)
    return Request(model=model, target=Target(**target), key=name, tier=Tier.REAL)


def subject_of(
    build: Callable[[], nn.Module],
    folder: Path,
    *,
    tier: Tier = Tier.REAL,
    asked: Tier = Tier.AUTO,
    enter: Callable[[Phase], None] = lambda _: None,
    keep_artifacts: bool = False,
    **target: Any,
) -> Subject:
    """A model with a tensor of ones, as the worker makes it."""
    torch.manual_seed(0)
    fake_mode = InputAwareFakeMode() if tier is Tier.FAKE else None
    request = msgspec.structs.replace(
        request_of("x", **target), tier=asked, keep_artifacts=keep_artifacts
    )

    def built() -> nn.Module:
        with fake_mode if fake_mode is not None else nullcontext():
            return build().train(request.target.mode is Mode.TRAIN)

    module = built()
    with fake_mode if fake_mode is not None else nullcontext():
        inputs = ExampleInputs(strategy="test", args=(torch.ones(3, 4),))
    return Subject(
        request=request,
        module=module,
        inputs=inputs,
        fake_mode=fake_mode,
        artifacts=folder,
        enter=enter,
        rebuilt=built,
    )


def evaluated(case: Case, folder: Path) -> Evaluated:
    def scripted() -> tuple[TargetOutcome, str]:
        """The outcome that the script is compared with, and the script. In a fork."""
        results: list[Result] = []
        captured = reproduce.captured

        def noted(request: Request) -> Result:
            results.append(captured(request))
            return results[-1]

        reproduce.captured = noted
        text = reproduce.script(request_of(case.name))
        fields = TargetOutcome.__struct_fields__
        return TargetOutcome(**{name: getattr(results[0], name) for name in fields}), text

    real, script = forked.in_fork(scripted, tuple[TargetOutcome, str])
    fake = None
    if case.build is not LazyLayer:  # its parameters cannot be made fake, which the worker notices
        try:
            subject = subject_of(case.build, folder, tier=Tier.FAKE)
            fake = subject.in_fork(DynamoTarget().run, TargetOutcome)
        except RecordedError as error:
            if "FakeUnsupportedError" not in error.names:
                raise
    return Evaluated(real=real, fake=fake, script=script)


if __name__ == "__main__":
    warmup.warm_up()
    assert forked.possible()
    gc.disable()
    gc.freeze()
    place = Path(sys.argv[1])
    channel = os.dup(1)
    os.dup2(2, 1)  # what the modules print
    found = {case.name: evaluated(case, place) for case in CASES}
    os.write(channel, msgspec.json.encode(found))
