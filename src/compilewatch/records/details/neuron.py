"""What compiling for Neuron found."""

from __future__ import annotations

from compilewatch.records.base import SCHEMA_VERSION, Record


class NeffHeader(Record, frozen=True, kw_only=True):
    """The header of a NEFF, the executable of a NeuronCore, as the compiler wrote it.

    `cores` is how many NeuronCores it was built for; `hash` and `uuid` are hexadecimal.
    """

    package_version: int
    header_bytes: int
    data_bytes: int
    version: str
    build: str
    cores: int
    requested_cores: int
    hash: str
    uuid: str
    name: str
    feature_bits: int
    logical_core_size: int


class NeuronFailure(Record, frozen=True, kw_only=True):
    """Why neuronx-cc gave no NEFF.

    `kind` is a class of ours (`worker.neuron.error_classes`); `code` is the compiler's (`NCC_…`,
    or an older `XTP002`, `F137`), None where it gave none. `message` and `advice` are its own
    words, taken from its log. `signal` names what ended it.
    """

    kind: str
    code: str | None = None
    message: str = ""
    advice: str = ""
    exit_status: int | None = None
    signal: str | None = None


class NeuronOperator(Record, frozen=True, kw_only=True):
    """An operator that `torch_neuronx.analyze` found unsupported, and which step refused it."""

    name: str
    occurrences: int
    failure_at: str


class NeuronSupport(Record, frozen=True, kw_only=True):
    """What `torch_neuronx.analyze` says. `supported` counts calls by operator."""

    percent: float | None = None
    supported: dict[str, int] = {}
    unsupported: tuple[NeuronOperator, ...] = ()


class NeuronDetail(Record, frozen=True, kw_only=True, tag="neuron"):
    """What compiling for Neuron found; also the file `neuron.json` of `neuron compile`.

    `target` is the instance family, `route` is `torch_neuronx.trace` or `neuronx-cc`. `flags` are
    the compiler's, all that can change its answer. `compile_seconds` is the compiler's wall time,
    on the route `torch_neuronx.trace` with the lowering; None where the NEFF is from the compile
    cache (`cached`). `compiler_peak_memory_bytes` is that of its largest process on the host.
    Latencies are medians over `latency_samples` runs, of eager mode on the host's CPU and of the
    NEFF on a NeuronCore; they are None where there is no device.
    """

    target: str
    route: str
    flags: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    sdk_version: str | None = None
    compiler_version: str | None = None
    hlo_sha256: str | None = None
    compiled: bool = False
    cached: bool = False
    compile_seconds: float | None = None
    compiler_peak_memory_bytes: int | None = None
    neff_bytes: int | None = None
    neff: NeffHeader | None = None
    failure: NeuronFailure | None = None
    support: NeuronSupport | None = None
    device_cores: int | None = None
    eager_latency_seconds: float | None = None
    latency_seconds: float | None = None
    latency_samples: int | None = None
