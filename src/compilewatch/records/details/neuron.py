"""Details of the `neuron` target."""

from __future__ import annotations

from compilewatch.records.base import SCHEMA_VERSION, Record


class NeffHeader(Record, frozen=True, kw_only=True):
    """The header of a NEFF, the executable of a NeuronCore, as the compiler wrote it.

    `cores` is the number of NeuronCores it was built for; `hash` and `uuid` are hexadecimal.
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
    """Why neuronx-cc produced no NEFF.

    `kind` is a class from `neuron.error_classes`; `code` is the compiler's own (`NCC_…`, or an
    older `XTP002`, `F137`), None if it printed none. `message` and `advice` are quoted from its
    log. `signal` is the signal that ended it.
    """

    kind: str
    code: str | None = None
    message: str = ""
    advice: str = ""
    exit_status: int | None = None
    signal: str | None = None


class NeuronOperator(Record, frozen=True, kw_only=True):
    """An operator that `torch_neuronx.analyze` found unsupported; `failure_at` names the step."""

    name: str
    occurrences: int
    failure_at: str


class NeuronSupport(Record, frozen=True, kw_only=True):
    """The report of `torch_neuronx.analyze`. `supported` counts calls by operator."""

    percent: float | None = None
    supported: dict[str, int] = {}
    unsupported: tuple[NeuronOperator, ...] = ()


class NeuronDetail(Record, frozen=True, kw_only=True, tag="neuron"):
    """Details of compiling for Neuron; also the file `neuron.json` of `neuron compile`.

    `target` is the instance family, `route` is `torch_neuronx.trace` or `neuronx-cc`. `flags` are
    all compiler flags that can change its result. `compile_seconds` is the wall-clock time of the
    compiler, including the lowering for the route `torch_neuronx.trace`; None if the NEFF comes
    from the compile cache (`cached`). `compiler_peak_memory_bytes` is the peak memory of the
    compiler's largest process on the host. Latencies are medians over `latency_samples` runs, of
    eager mode on the host's CPU and of the NEFF on a NeuronCore; they are None without a device.
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
