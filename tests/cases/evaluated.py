"""What compilewatch says of the modules of breaks.py, from a process like a worker.

The process of a test may have several threads, and then has no forks. Run with an empty folder as
argument. Prints one JSON object, case name -> `Evaluated`.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from breaks import CASES, Case
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.records import FactoryBuild, ModelSpec, Request, Target, TargetOutcome, Tier
from compilewatch.worker import forked
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.process import warmup
from compilewatch.worker.reproduce import script
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.target import DynamoTarget

CASES_FOLDER = Path(__file__).parent


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes on real and on fake tensors, None where those give none, and the script."""

    real: TargetOutcome
    fake: TargetOutcome | None
    script: str


def request_of(name: str, **target: Any) -> Request:
    """A request for a case by its name, on real tensors."""
    build = FactoryBuild(factory=f"broken:{name}", path=str(CASES_FOLDER), inputs="broken:inputs")
    model = ModelSpec(source="test", name=name, build=build)
    return Request(model=model, target=Target(**target), key=name, tier=Tier.REAL)


def outcome(case: Case, fake_mode: FakeTensorMode | None, folder: Path) -> TargetOutcome:
    torch.manual_seed(0)
    with fake_mode if fake_mode is not None else nullcontext():
        module, inputs = case.build().eval(), (torch.ones(3, 4),)
    request = msgspec.structs.replace(request_of(case.name), tier=Tier.AUTO, keep_artifacts=False)
    subject = Subject(
        request=request,
        module=module,
        inputs=ExampleInputs(strategy="test", args=inputs),
        fake_mode=fake_mode,
        artifacts=folder,
        enter=lambda _: None,
    )
    return subject.in_fork(DynamoTarget().run, TargetOutcome)


def evaluated(case: Case, folder: Path) -> Evaluated:
    written = forked.in_fork(lambda: script(request_of(case.name)), str, [])
    fake = None if case.needs_real else outcome(case, InputAwareFakeMode(), folder)
    return Evaluated(real=outcome(case, None, folder), fake=fake, script=written)


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
