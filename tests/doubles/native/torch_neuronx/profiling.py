"""A double of torch_neuronx.profiling, with its documented surface.

Neuron SDK 2.33, tools/neuron-explorer/how-to-profile-pytorch. The names of the files of a session
are AWS's; the runtime writes none where NEURON_RT_INSPECT_ENABLE has claimed its profiler.
"""

import enum
import os
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig

ProfileMode = enum.Enum("ProfileMode", ["DEVICE", "RUNTIME", "CPU_UTIL", "HOST_MEMORY"])
FILES = {
    ProfileMode.DEVICE: ("profile_nc_0_session_0.ntff",),
    ProfileMode.RUNTIME: ("ntrace.pb", "trace_info.pb"),
    ProfileMode.CPU_UTIL: ("cpu_util.pb",),
    ProfileMode.HOST_MEMORY: ("host_mem.pb",),
}


class NeuronConfig(_ExperimentalConfig):
    def __init__(self, *, modes: list[ProfileMode], profile_output_dir: str) -> None:
        super().__init__()
        self.modes, self.folder = modes, Path(profile_output_dir)


class NeuronProfiler:
    def __init__(self, config: NeuronConfig) -> None:
        self.config = config

    def export_trace(self, profiler: Any) -> None:
        session = self.config.folder / f"i-0_pid_{os.getpid()}" / "1"
        session.mkdir(parents=True)
        profiler.export_chrome_trace(str(session / "trace.json"))
        for mode in self.config.modes if "NEURON_RT_INSPECT_ENABLE" not in os.environ else ():
            for name in FILES[mode]:
                (session / name).write_text("recorded")
