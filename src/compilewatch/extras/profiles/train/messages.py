"""What the parent asks of a worker for a profile with the tools of the Neuron SDK."""

from __future__ import annotations

from compilewatch.records import Record, Request


class NeuronCapture(Record, frozen=True, kw_only=True):
    """Profile some training steps of a model with torch_neuronx, in its environment.

    The fields from `port` on are the arguments of `torch_neuronx.experimental.profiler.profile`.
    """

    request: Request
    steps: int = 10
    port: int = 9012
    profile_type: str = "trace"
    ms_duration: int = 15000
    neuron_tensorboard_plugin_dir: str = "logs/plugins/neuron"
    delete_working: bool = True


class CapturedProfile(Record, frozen=True, kw_only=True):
    """`files` are below the folder of the capture; `blocks` counts the named blocks that ran."""

    api: str
    steps: int
    blocks: dict[str, int]
    files: tuple[str, ...]
