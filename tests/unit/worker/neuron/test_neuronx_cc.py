"""The compiler's codes, statuses and signals, in lines as users report them; headers of NEFFs."""

import pytest

from compilewatch.neuron.neuronx_cc import failure

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
    ("log", "status", "kind", "code", "signal"),
    [
        ("[NCC_EVRF009] Size of total input", 70, "device_memory", "NCC_EVRF009", None),
        ("[NCC_EVRF029]: Operation sort", 70, "unsupported_operator", "NCC_EVRF029", None),
        ("[NCC_EBVF030] Too many", 70, "too_many_instructions", "NCC_EBVF030", None),
        ("NCC_EMOD025: Dynamic shape", 70, "dynamic_shape", "NCC_EMOD025", None),
        ("[INTERNAL_ERROR] [NCC_ITEN406] assertion", 70, "internal", "NCC_ITEN406", None),
        ("[NCC_EABC999] new in the next release", 70, "unknown", "NCC_EABC999", None),
        ("[XTP002] Too many instructions", 70, "too_many_instructions", "XTP002", None),
        ("[ABC123] of old", 70, "unknown", "ABC123", None),
        ("no code at all", 70, "unknown", None, None),
        (KILLED, 70, "host_memory", "F137", "SIGKILL"),
        (INTERNAL, 70, "internal", "NLA001", None),
        ("[F134] neuronx-cc terminated abnormally", 70, "crashed", "F134", "SIGABRT"),
        ("[NCC_EVRF009] a warning", -9, "host_memory", None, "SIGKILL"),
        ("", 137, "host_memory", None, "SIGKILL"),
        ("", -11, "crashed", None, "SIGSEGV"),
        ("", -15, "unknown", None, "SIGTERM"),
        ("", 1, "unknown", None, None),
    ],
)
def test_a_code_a_status_and_a_signal_have_classes(
    log: str, status: int, kind: str, code: str | None, signal: str | None
) -> None:
    found = failure(f"noise\n{PREFIX}{log}\n" if log else "", status)
    assert (found.kind, found.code, found.signal) == (kind, code, signal)
    assert found.exit_status == (status if status > 0 else None)
    assert bool(found.message) is bool(log)


def test_message_and_advice_are_the_compilers_own() -> None:
    found = failure(KILLED, 70)
    assert found.message == "neuronx-cc was forcibly killed"
    assert found.advice.startswith("This most commonly occurs due to insufficient system memory")
    assert failure(INTERNAL, 70).message.endswith("Allocated memory out of bound")
    assert failure(f"{PREFIX}the last line\n****\n", 1).message == "the last line"
