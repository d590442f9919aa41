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

FACTORIES = """
import breaks, torch
globals().update({case.name: case.build for case in breaks.CASES})
def inputs():
    return (torch.ones(3, 4),)
"""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes on real and on fake tensors, None where those give none, and the script."""

    real: TargetOutcome
    fake: TargetOutcome | None
    script: str


def request_of(case: Case, folder: Path) -> Request:
    build = FactoryBuild(
        factory=f"reproducible:{case.name}", path=str(folder), inputs="reproducible:inputs"
    )
    model = ModelSpec(source="test", name=case.name, build=build)
    return Request(model=model, target=Target(), key="0", tier=Tier.REAL)


def outcome(case: Case, fake_mode: FakeTensorMode | None, folder: Path) -> TargetOutcome:
    torch.manual_seed(0)
    with fake_mode if fake_mode is not None else nullcontext():
        module, inputs = case.build().eval(), (torch.ones(3, 4),)
    request = msgspec.structs.replace(
        request_of(case, folder), tier=Tier.AUTO, keep_artifacts=False
    )
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
    written = forked.in_fork(lambda: script(request_of(case, folder)), str, [])
    fake = None if case.needs_real else outcome(case, InputAwareFakeMode(), folder)
    return Evaluated(real=outcome(case, None, folder), fake=fake, script=written)


if __name__ == "__main__":
    warmup.warm_up()
    assert forked.possible()
    gc.disable()
    gc.freeze()
    place = Path(sys.argv[1])
    (place / "reproducible.py").write_text(FACTORIES)
    channel = os.dup(1)
    os.dup2(2, 1)  # what the modules print
    found = {case.name: evaluated(case, place) for case in CASES}
    os.write(channel, msgspec.json.encode(found))
