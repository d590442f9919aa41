"""Models with a planted fault, in the real sandbox and on real targets: each has its own class.

Each case imports torch in one or more sandboxes, which takes seconds; only that shows that a fault
ends in the class of this fault and of no other.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.config import load_settings
from compilewatch.errors import LauncherError, SandboxError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.papers.execution import (
    EAGER_LIMITS,
    PapersSource,
    SandboxLauncher,
    SandboxRunner,
    Sweeper,
    generated_spec,
    run_eager,
    trained,
    training_files,
)
from compilewatch.extras.papers.records import (
    Claim,
    CodeVersion,
    FindingClass,
    PaperPlan,
    PipelineStage,
    StageResult,
)
from compilewatch.extras.papers.store import PaperStore
from compilewatch.launchers import by_environment
from compilewatch.records import Request, Target, digest
from tests import papers as world
from tests.confinement import need_sandbox

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def confined() -> None:
    """Where code cannot be confined it is not run, and neither are these tests."""
    need_sandbox()


def module(forward: str, extra: str = "") -> str:
    return f"""import torch
from torch import nn

{extra}

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


PLAN = PaperPlan(contribution="", claims=(Claim(id="C1", statement="", operations=("relu",)),))


def eager(source: str, limits: SandboxLimits = EAGER_LIMITS) -> StageResult:
    return run_eager(SandboxRunner(), generation(source), PLAN, limits)[0]


def swept(tmp_path: Path, source: str, target: str, cache: Path | None = None) -> StageResult:
    """The sweep of a stored version, as `papers run --targets` does it."""
    version = generation(source)
    folder = PaperStore(tmp_path).folder(version.paper)
    name = folder.write(PipelineStage.GENERATE, source.encode(), ".py")
    of_version: dict[str, Any] = {"generation": version.id, "files": (name,)}
    folder.append(StageResult(paper=version.paper, stage=PipelineStage.GENERATE, **of_version))
    flags = {"output_dir": str(tmp_path), "cache": str(cache) if cache else None}
    environments = ("default", "xla") if cache else ("default",)
    launcher = SandboxLauncher(1, environments, cache=cache)
    sweeper = Sweeper(settings=load_settings(flags), targets=(target,), launcher=launcher)
    ran = sweeper.run(version, folder)
    for result in msgspec.json.decode(folder.read(ran.files[0])):
        assert result["request"]["model"]["provenance"]["paper_sha256"] == "d" * 64
    return ran


def kinds(ran: StageResult) -> set[FindingClass]:
    return {finding.kind for finding in ran.findings}


def test_a_value_that_is_read_is_a_graph_break_with_its_line(tmp_path: Path) -> None:
    source = module("return self.f(x) * x.sum().item()")
    ran = swept(tmp_path, source, "dynamo")
    assert kinds(ran) == {FindingClass.GRAPH_BREAK}
    assert (
        ran.findings[0].line
        == source.splitlines().index("        return self.f(x) * x.sum().item()") + 1
    )


@pytest.mark.matrix  # in `make test`, neuronx-cc rejects a model (test_other_targets.py)
def test_what_export_does_not_support_is_the_compilers(tmp_path: Path) -> None:
    source = module("return self.f(x)[x[:, 0] > 0] if x.sum() > 0 else self.f(x)")
    assert kinds(swept(tmp_path, source, "export")) == {FindingClass.COMPILER_CANNOT}


@pytest.mark.matrix
def test_a_model_that_computes_something_else_when_compiled_is_a_mismatch(tmp_path: Path) -> None:
    source = module("return self.f(x) + (1.0 if torch.compiler.is_compiling() else 0.0)")
    assert kinds(swept(tmp_path, source, "inductor")) == {FindingClass.MISMATCH}


@pytest.mark.matrix
def test_a_hang_times_out() -> None:
    limits = msgspec.structs.replace(EAGER_LIMITS, deadline_seconds=25.0)
    ran = eager(module("\n        while True: pass"), limits)
    assert kinds(ran) == {FindingClass.TIMED_OUT}
    assert "eager" in ran.findings[0].evidence


@pytest.mark.matrix
def test_too_much_memory_is_out_of_memory() -> None:
    limits = msgspec.structs.replace(EAGER_LIMITS, memory_bytes=1536 * MIB)
    source = module("return self.f(x) + torch.ones(1024, 1024, 1024, 2).sum()")
    assert kinds(eager(source, limits)) == {FindingClass.OOM}


@pytest.mark.matrix
def test_code_that_fails_without_a_compiler_is_wrong_in_eager_with_its_line() -> None:
    source = module("return self.f(x @ x)")
    ran = eager(source)
    assert kinds(ran) == {FindingClass.WRONG_IN_EAGER}
    assert ran.findings[0].line == source.splitlines().index("        return self.f(x @ x)") + 1


@pytest.mark.matrix
def test_a_training_that_reports_nothing_is_no_success() -> None:
    source = module("return self.f(x)", "import torch.optim") + "\n\nraise SystemExit(0)\n"
    ran = trained(SandboxRunner().run(training_files(generation(source)), EAGER_LIMITS))
    assert kinds(ran) == {FindingClass.CRASHED}
    assert ran.numbers["execution_success"] == 0.0


def test_sandboxed_code_is_rejected_by_every_other_launcher(tmp_path: Path) -> None:
    spec = generated_spec(generation(module("return x")), tmp_path / "code.py")
    request = Request(model=spec, target=Target(), key="k")
    with pytest.raises(LauncherError, match="only runs in the sandbox"):
        by_environment([request], ["default"], "this launcher has")


def test_the_source_papers_says_why_a_model_is_not_compiled(tmp_path: Path) -> None:
    papers = world.some_papers(tmp_path, 1)

    class Wrong(world.FakeRunner):
        def run(
            self, files: Mapping[str, str | bytes], limits: SandboxLimits
        ) -> sandbox.SandboxResult:
            done = super().run(files, limits)
            state = {"phase": "eager", "error": {"message": "ValueError: no", "line": 3}}
            found = {"result.json": msgspec.json.encode(state)}
            return msgspec.structs.replace(done, exit_code=1, files=found)

    with world.served() as (_, provider):
        world.pipeline(tmp_path, provider, papers, runner=Wrong()).run(papers)
    (spec,) = PapersSource(outputs=tmp_path).models()
    assert spec.skip_reason == "wrong in eager: eager: ValueError: no"
    assert spec.provenance["scripted"] == "false"


# --- the torch that generated code finds, however the environment was set up ---


@pytest.fixture
def workspace() -> Iterator[Path]:
    """An environment without packages, below a folder that the sandbox's user can read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        venv = Path(folder) / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        yield venv


def test_an_environment_without_torch_is_never_blamed_on_a_paper(workspace: Path) -> None:
    runner = SandboxRunner(str(workspace / "bin" / "python"))
    with pytest.raises(SandboxError, match="torch cannot be imported in the sandbox"):
        runner.check()
    for ran in run_eager(runner, generation("import torch"), PLAN):
        assert "torch cannot be imported in the sandbox" in ran.not_run
        assert ran.findings == ()


@pytest.mark.matrix
def test_torch_of_a_shared_environment_is_there(workspace: Path) -> None:
    """As scripts/setup.sh shares it between the workspaces of an agent."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    packages = Path(torch.origin).parents[1]
    own = sysconfig.get_path("purelib", vars={"base": str(workspace)})
    Path(own, "shared.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    (workspace / "shared").symlink_to(packages.parents[2])
    runner = SandboxRunner(str(workspace / "bin" / "python"))
    runner.check()
    assert runner.run({"main.py": "import torch"}, EAGER_LIMITS).succeeded
