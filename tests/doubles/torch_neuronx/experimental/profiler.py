"""A double of torch_neuronx.experimental.profiler: `profile` with its documented arguments.

Documented surface: Neuron SDK 2.32.0, torch-neuronx profiling API. It rejects values that the real
one rejects and writes the files that its views read: `neuron_op_timeline.json` and others for
`operator`, `trace.json` for `trace`; nothing where `ms_duration` is 0. `arguments.json` holds what
it was called with.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILES = {
    "operator": (
        "neuron_op_timeline",
        "neuron_op_timeline_split",
        "neuron_hlo_op",
        "neuron_framework_op",
    ),
    "trace": ("trace",),
}


@contextmanager
def profile(
    port: int = 9012,
    ms_duration: int = 60000,
    neuron_tensorboard_plugin_dir: str = "logs/plugins/neuron",
    profile_type: str = "operator",
    auto_start: bool = True,
    delete_working: bool = True,
    traced_only: bool = False,
) -> Iterator[None]:
    arguments = dict(locals())
    if profile_type not in FILES:
        raise ValueError(f"profile_type {profile_type!r}")
    yield
    if ms_duration == 0:
        return
    run = Path(neuron_tensorboard_plugin_dir) / time.strftime("%Y_%m_%d_%H_%M_%S")
    run.mkdir(parents=True, exist_ok=True)
    for name in FILES[profile_type]:
        (run / f"{name}.json").write_text("{}")
    (run / "arguments.json").write_text(json.dumps(arguments))
