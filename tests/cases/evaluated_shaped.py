"""What compilewatch says of the models of shaped.py, in any environment.

Prints one JSON object: `branch eval True` -> `records.ShapeSeries`.
"""

import os
from pathlib import Path

import msgspec
from evaluated import subject_of
from shaped import SHAPED, Shaped

from compilewatch.records import Mode, ShapeSeries, Tier
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets.dynamo.series import series


def evaluated(case: Shaped, mode: Mode, dynamic: bool | None) -> ShapeSeries:
    tier = Tier.REAL if case.needs_real else Tier.FAKE
    subject = subject_of(case.build, Path(), tier=tier, mode=mode)
    with series(subject, dynamic=dynamic) as compiled:
        for call in range(1, len(case.calls) + 1):
            compiled.call({}, ExampleInputs(strategy="test", args=case.arguments(call)))
        return compiled.record()


if __name__ == "__main__":
    channel = os.dup(1)
    os.dup2(2, 1)  # what torch prints
    answers = {
        f"{case.name} {mode.value} {dynamic}": evaluated(case, mode, dynamic)
        for case in SHAPED
        for mode in Mode
        for dynamic in (None, True)
    }
    os.write(channel, b"\n" + msgspec.json.encode(answers))
