"""The standard trace of a sweep: what its sizes compile, and that it cannot cost the verdict."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    FactoryBuild,
    ModelSpec,
    RecompilationKind,
    Request,
    Result,
    Status,
    Target,
    Tier,
)
from compilewatch.worker.example_inputs.sizes import inputs_of
from compilewatch.worker.targets.dynamo.series import series
from tests.integration.worker.targets.conftest import MakeSubject

MODELS = """
import os
import signal

import torch
from torch import nn


class Odd(nn.Module):
    def forward(self, x):
        return x + 1 if x.shape[0] % 2 else x - 1


class Crashing(nn.Module):
    def forward(self, x):
        if x.shape[0] == 64:
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1


def inputs():
    return (torch.ones(2, 4),)
"""


def request(folder: Path, name: str) -> Request:
    build = FactoryBuild(factory=f"served:{name}", path=str(folder), inputs="served:inputs")
    model = ModelSpec(source="manifest", name=name, build=build)
    return Request(model=model, target=Target(), key=name, tier=Tier.FAKE, shapes=True)


def test_a_sweep_stores_what_the_standard_trace_compiles(
    tmp_path: Path, warm_launcher: LocalLauncher
) -> None:
    (tmp_path / "served.py").write_text(MODELS)
    requests = [request(tmp_path, name) for name in ("Odd", "Crashing")]
    results: dict[str, Result] = {
        completed.result.request.key: completed.result
        for completed in warm_launcher.run(requests, tmp_path)
    }
    odd, crashing = (results[name].shapes for name in ("Odd", "Crashing"))
    assert {result.status for result in results.values()} == {Status.PASS}
    assert odd is not None
    assert odd.as_called is not None
    assert odd.dynamic is not None
    # 1, 2, 8, 3, 64, 5, 7: first static, then dynamic for even sizes, then for odd ones
    assert odd.as_called.compiled == (1, 1, 0, 1, 0, 0, 0)
    assert odd.dynamic.compiled == (1, 1, 0, 1, 0, 0, 0)
    assert odd.as_called.dynamic == ("x.0",)
    assert odd.as_called.recompilations[-1].kind is RecompilationKind.MODULO
    assert odd.as_called.recompilations[-1].needed_by is not None
    assert odd.as_called.recompilations[-1].needed_by.line == 11
    assert crashing is not None
    assert crashing.as_called is None
    assert "SIGKILL" in crashing.problem


class Cut(nn.Module):
    """Returns what its input alone determines, and views of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        return torch.cat([x, x[:, 1:]], 1).T, x, 2 * x.shape[0]


class Counting(nn.Module):
    """Counts its calls where the caller can read it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_outputs_have_the_sizes_of_the_calls_and_what_is_changed_is_counted(
    make_subject: MakeSubject, dynamic: bool | None
) -> None:
    cut = make_subject(Cut, tier=Tier.FAKE)
    with series(cut, dynamic=dynamic) as compiled:
        for batch in (4, 5, 7, 1):
            inputs = inputs_of(cut, {"x.0": batch})
            call = compiled.call({"x.0": batch}, inputs)
            turned, same, twice = compiled.output
            assert (call.error, len(call.served_by)) == ("", 1)
            assert (turned.shape, turned.stride()) == ((7, batch), (1, 7))
            assert same is inputs.args[0]
            assert twice == 2 * batch
    counting = make_subject(Counting, tier=Tier.FAKE)
    with series(counting, dynamic=dynamic) as compiled:
        for batch in (4, 5, 7):
            compiled.call({"x.0": batch}, inputs_of(counting, {"x.0": batch}))
    assert counting.module.calls._version == 3
