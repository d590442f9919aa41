"""The compiler's codes, statuses and signals, in lines as users report them; headers of NEFFs."""

from pathlib import Path

import pytest

from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import HEADER, failure, read_header

PREFIX = "2023-12-26T08:37:54Z USER 26191 [neuronxcc.driver.CommandDriver]: "

# aws-neuron-samples issue 64 and aws-neuron-sdk issue 1118, shortened to their last lines.
KILLED = (
    "2023-12-26T08:37:54Z ERROR 26189 [job.WalrusDriver.0]: Backend exited with code -9\n"
    f"{PREFIX}[F137] neuronx-cc was forcibly killed - This most commonly occurs due to "
    "insufficient system memory. Using a larger instance type may help.\n"
)
INTERNAL = (
    "2025-02-24T00:04:00Z ERROR 5521 [neuronxcc.driver.CommandDriver]:  An Internal Compiler "
    "Error has occurred\n2025-02-24T00:04:00Z USER 5521 [neuronxcc.driver.CommandDriver]: [NLA001]"
    "  Unhandled exception with message: Allocated memory out of bound - Please open a ticket\n"
)


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("[NCC_EVRF009] Size of total input exceeds 16GB", "NCC_EVRF009", "device_memory"),
        ("[NCC_EVRF029]: Operation sort is not supported", "NCC_EVRF029", "unsupported_operator"),
        ("[NCC_EBVF030] Too many instructions", "NCC_EBVF030", "too_many_instructions"),
        ("NCC_EMOD025: Dynamic shape", "NCC_EMOD025", "dynamic_shape"),
        ("[INTERNAL_ERROR] [NCC_ITEN406] assertion", "NCC_ITEN406", "internal"),
        ("[NCC_EABC999] new in the next release", "NCC_EABC999", "unknown"),
        ("[XTP002] Too many instructions after unroll", "XTP002", "too_many_instructions"),
        ("[ABC123] of old", "ABC123", "unknown"),
        ("no code at all", None, "unknown"),
    ],
)
def test_a_code_has_a_class(line: str, code: str | None, kind: str) -> None:
    found = failure(f"noise\n{PREFIX}{line}\n", 70)
    assert (found.code, found.kind, found.exit_status) == (code, kind, 70)
    assert line.endswith(found.message)
    assert found.message


@pytest.mark.parametrize(
    ("log", "status", "kind", "code", "signal"),
    [
        (KILLED, 70, "host_memory", "F137", "SIGKILL"),
        (INTERNAL, 70, "internal", "NLA001", None),
        ("[F134] neuronx-cc terminated abnormally - Please", 70, "crashed", "F134", "SIGABRT"),
        (f"{PREFIX}[NCC_EVRF009] a warning\n", -9, "host_memory", None, "SIGKILL"),
        ("", 137, "host_memory", None, "SIGKILL"),
        ("", -11, "crashed", None, "SIGSEGV"),
        ("", -15, "unknown", None, "SIGTERM"),
        ("", 1, "unknown", None, None),
    ],
)
def test_a_signal_is_a_class_of_its_own(
    log: str, status: int, kind: str, code: str | None, signal: str | None
) -> None:
    found = failure(log, status)
    assert (found.kind, found.code, found.signal) == (kind, code, signal)
    assert found.exit_status == (status if status > 0 else None)


def test_message_and_advice_are_the_compilers_own() -> None:
    found = failure(KILLED, 70)
    assert found.message == "neuronx-cc was forcibly killed"
    assert found.advice.startswith("This most commonly occurs due to insufficient system memory")
    assert failure(INTERNAL, 70).message.endswith("Allocated memory out of bound")


FIELDS = (
    *(2, 1024, 7, 2, 1),
    b"2.27.5334.0+f702b353",
    *(1, b"\x01" * 32, b"\x02" * 16, b"graph.neff", 1, b"\x01" * 64, 5, 2, b""),
)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "graph.neff"
    path.write_bytes(data)
    return path


def test_its_fields_are_read(tmp_path: Path) -> None:
    header = read_header(written(tmp_path, HEADER.pack(*FIELDS) + b"payload"))
    assert HEADER.size == header.header_bytes == 1024
    assert (header.package_version, header.data_bytes, header.version) == (2, 7, "2.1")
    assert (header.build, header.name) == ("2.27.5334.0+f702b353", "graph.neff")
    assert (header.cores, header.requested_cores, header.logical_core_size) == (1, 1, 2)
    assert (header.hash, header.uuid, header.feature_bits) == ("01" * 32, "02" * 16, 5)


@pytest.mark.parametrize("size", [0, 100, 1024, 1030])
def test_one_that_was_cut_is_broken(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, (HEADER.pack(*FIELDS) + b"payload")[:size])
    with pytest.raises(neuronx_cc.NeffError, match=f"{size}"):
        read_header(path)


def test_another_layout_has_no_header_that_we_know(tmp_path: Path) -> None:
    assert read_header(written(tmp_path, HEADER.pack(2, 2048, *FIELDS[2:]))) is None
