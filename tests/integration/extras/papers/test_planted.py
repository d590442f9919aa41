"""Models with a planted fault, in the real sandbox and on real targets: each has its own class.

Each case imports torch in one or more sandboxes, which takes seconds; only that shows that a fault
ends in the class of this fault and of no other.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.config import load_settings
from compilewatch.errors import LauncherError, SandboxError
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits, SandboxResult
from compilewatch.extras.papers import records
from compilewatch.extras.papers.execution import (
    EAGER_LIMITS,
    PapersSource,
    SandboxLauncher,
    SandboxRunner,
    Sweeper,
    generated_spec,
    run_eager,
)
from compilewatch.extras.papers.records import CodeVersion, FindingClass, PipelineStage, StageResult
from compilewatch.extras.papers.store import PaperStore
from compilewatch.extras.papers.worker import script
from compilewatch.launchers import by_environment
from compilewatch.records import Request, Target, digest
from tests import factories
from tests import papers as world
from tests.confinement import need_sandbox

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def confined() -> None:
    """Where code cannot be confined it is not run, and neither are these tests."""
    need_sandbox()


def module(forward: str) -> str:
    return f"""import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        {forward}

def model():
    return Net()

def inputs():
    return (torch.randn(2, 4),)

def loss(output, inputs):
    return output.sum()
"""


def generation(source: str) -> CodeVersion:
    return world.version(source, id=digest(source), paper_sha256="d" * 64)


PLAN = records.PaperPlan(
    contribution="", claims=(records.Claim(id="C1", statement="", operations=("relu",)),)
)


def swept(tmp_path: Path, source: str, target: str, cache: Path | None = None) -> StageResult:
    """The sweep of a stored version, as `papers run --targets` does it."""
    version = generation(source)
    folder = PaperStore(tmp_path).folder(version.paper)
    stage = PipelineStage.GENERATE
    files = (folder.write(stage, source.encode(), ".py"), folder.write_record(stage, version))
    of_version: dict[str, Any] = {"generation": version.id, "files": files}
    of_version["numbers"] = {"version": float(version.number)}
    folder.append(StageResult(paper=version.paper, stage=PipelineStage.GENERATE, **of_version))
    flags = {"output_dir": str(tmp_path), "cache": str(cache) if cache else None}
    environments = ("default", "xla") if cache else ("default",)
    launcher = SandboxLauncher(environments, cache=cache)
    sweeper = Sweeper(load_settings(flags), (target,), launcher)
    ran = sweeper.run(version, folder)
    for result in msgspec.json.decode(folder.read(ran.files[0])):
        assert result["request"]["model"]["provenance"]["paper_sha256"] == "d" * 64
    return ran


def kinds(ran: StageResult) -> set[FindingClass]:
    return {finding.kind for finding in ran.findings}


BRANCHING = "return self.f(x) if x.sum() > 0 else x"
COMPILING = "return self.f(x) + (1.0 if torch.compiler.is_compiling() else 0.0)"


@pytest.mark.parametrize(
    ("target", "forward", "kind"),
    [
        ("dynamo", "return self.f(x) * x.sum().item()", "graph_break"),
        pytest.param("export", BRANCHING, "compiler_cannot", marks=pytest.mark.matrix),
        pytest.param("inductor", COMPILING, "mismatch", marks=pytest.mark.matrix),
    ],
)
def test_a_fault_of_a_target_has_its_class(
    tmp_path: Path, target: str, forward: str, kind: str
) -> None:
    source = module(forward)
    ran = swept(tmp_path, source, target)
    assert kinds(ran) == {kind}
    if target == "dynamo":
        assert ran.findings[0].line == source.splitlines().index(f"        {forward}") + 1


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("forward", "kind"),
    [
        ("return self.f(x) + torch.ones(1024, 1024, 1024, 2).sum()", FindingClass.OOM),
        ("return self.f(x @ x)", FindingClass.WRONG_IN_EAGER),
    ],
)
def test_code_that_fails_without_a_compiler_has_its_class(forward: str, kind: FindingClass) -> None:
    limits = msgspec.structs.replace(EAGER_LIMITS, memory_bytes=1536 * MIB)
    source = module(forward)
    ran, _ = run_eager(SandboxRunner(), generation(source), PLAN, limits)
    assert kinds(ran) == {kind}
    assert ran.findings[0].line == source.splitlines().index(f"        {forward}") + 1


def test_sandboxed_code_is_rejected_by_every_other_launcher(tmp_path: Path) -> None:
    spec = generated_spec(generation(module("return x")), tmp_path / "code.py")
    request = Request(model=spec, target=Target(), key="k")
    with pytest.raises(LauncherError, match="only runs in the sandbox"):
        by_environment([request], ["default"], "this launcher has")


def test_the_source_papers_says_why_a_model_is_not_compiled(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 1)
    state = {"phase": "eager", "error": {"message": "ValueError: no", "line": 3}}

    class Wrong(world.FakeRunner):
        def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
            returned = {"result.json": msgspec.json.encode(state)}
            return msgspec.structs.replace(super().run(files, limits), files=returned)

    world.processed(tmp_path, papers, runner=Wrong())
    (spec,) = PapersSource(factories.places(output_dir=str(tmp_path))).models()
    assert spec.skip_reason == "wrong in eager: eager: ValueError: no"
    assert spec.provenance["scripted"] == "False"


def test_an_environment_without_torch_is_never_blamed_on_a_paper() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # for the user of the sandbox
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        runner = SandboxRunner(f"{folder}/bin/python")
        with pytest.raises(SandboxError, match="torch cannot be imported in the sandbox"):
            runner.check()
        for ran in run_eager(runner, generation("import torch"), PLAN):
            assert "torch cannot be imported in the sandbox" in ran.not_run
            assert ran.findings == ()


# --- code that tries to forge the comparison with its formula ---

FORMULA = "x + sigmoid(matmul(x, transpose(W)) + b) * f(x)"
ATTRIBUTES = tuple(
    records.BoundAttribute(symbol=symbol, attribute=path)
    for symbol, path in (("W", "gate.weight"), ("b", "gate.bias"), ("f", "branch"))
)
INPUTS = (records.BoundInput(symbol="x", shape=(3, 4)),)
RIGHT = "x + torch.sigmoid(self.gate(x)) * self.branch(x)"
STOCK = "x + self.gate(x) + self.branch(x)"
BLOCK = """
class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.branch = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.hidden = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return RESULT
"""
FORGER = """import json, os, sys
import torch
from torch import nn
BLOCKS
def model():
    return nn.Sequential(LIST)

def inputs():
    return (torch.randn(2, 4),)

def loss(output, inputs):
    ATTACK
    return output.sum()
"""

BLOCKS = {
    "C0": RIGHT,
    "C1": "x + torch.sigmoid(self.branch(x)) * self.gate(x)",
    "C2": "x + torch.sigmoid(self.gate(x)) * self.branch(2 * x)",
    "C3": f"{RIGHT} + self.hidden",
}
"""One with the formula; then the function in the wrong place, another argument, and a term whose
parameter is zero at first."""

BLINDED = """\
sys.modules["__main__"].__dict__.update(TOLERANCE=float("inf"), difference=lambda *_: 0.0)
    torch.Tensor.abs = lambda self: self * 0
    torch.Tensor.item = lambda self: 0.0"""

FORGED = """\
os.makedirs("out", exist_ok=True)
    with open("out/result.json", "w") as file:
        json.dump({"phase": "done", "parameters": 1, "checks": [{"claim": "C0", "ok": True}],
                   "returned": [{"claim": "C0", "ok": True, "symbols": {}}]}, file)
    os._exit(0)"""


def unfaithful(results: dict[str, str], attack: str) -> list[str]:
    """What is found in a module with such blocks, a claim with the formula for each."""
    blocks = (BLOCK.replace("NAME", n).replace("RESULT", r) for n, r in results.items())
    source = FORGER.replace("BLOCKS", "".join(blocks)).replace("ATTACK", attack)
    places: dict[str, Any] = {"attributes": ATTRIBUTES, "inputs": INPUTS}
    bindings = tuple(
        records.Binding(claim=claim, module=str(number), **places)
        for number, claim in enumerate(results)
    )
    source = source.replace("LIST", ", ".join(f"{name}()" for name in results))
    version = world.version(source, bindings=bindings)
    claims = tuple(
        records.Claim(id=claim, statement="", operations=("sigmoid",), formula=FORMULA)
        for claim in results
    )
    plan = records.PaperPlan(contribution="", claims=claims)
    eager, formulas = run_eager(SandboxRunner(), version, plan)
    assert eager.findings == ()
    assert formulas.not_run == ""
    assert {finding.kind for finding in formulas.findings} <= {FindingClass.UNFAITHFUL}
    return [finding.evidence for finding in formulas.findings]


@pytest.mark.matrix
def test_what_differs_from_its_formula_is_found_though_code_blinds_the_comparison() -> None:
    claims = unfaithful(BLOCKS, BLINDED)
    assert [evidence.partition(":")[0] for evidence in claims] == [f"claim C{n}" for n in (1, 2, 3)]
    assert all("differs from" in evidence for evidence in claims)


@pytest.mark.matrix
def test_code_cannot_forge_what_is_compared_elsewhere() -> None:
    assert len(unfaithful({"C0": STOCK}, FORGED)) == 1


def test_what_has_no_elements_holds_no_comparison() -> None:
    """As code may return it: a sum of nothing is zero, and a list may be no tensor."""
    number = {bound.symbol: {"kind": "number", "value": 1} for bound in ATTRIBUTES}
    binding = msgspec.to_builtins({"inputs": INPUTS, "attributes": ATTRIBUTES})
    outputs: list[Any] = [[], [[], []], [[1.0], [1.0, 2.0]], {"file": "x"}, None]
    for output in outputs:
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            script.check("seed", "x + W", binding, {"symbols": number, "output": output})
