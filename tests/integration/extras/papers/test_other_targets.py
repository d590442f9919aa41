"""Generated models on the targets XLA and Neuron, confined; torch_neuronx is a double.

Takes seconds: a worker with torch_xla in a sandbox is the only proof that the confinement leaves it
what it needs. Nothing here has run on a Trainium device.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.environments import Environments
from compilewatch.extras.papers.records import FindingClass
from tests.confinement import need_sandbox
from tests.doubles import BIN, FOLDER
from tests.integration.extras.papers.test_planted import module, swept

pytestmark = [pytest.mark.torch, pytest.mark.xla, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """A cache with the environment xla where the user of a sandbox can read it, and Neuron's SDK.

    Root's home is not such a place. The files are links and take no room.
    """
    need_sandbox()
    folder = Path(tempfile.mkdtemp(prefix="compilewatch-test-"))
    folder.chmod(0o755)
    made = folder / "environments" / "xla"
    try:
        shutil.copytree(Environments().folder("xla"), made, symlinks=True, copy_function=os.link)
        for program in ("neuron-ls", "neuronx-cc"):
            shutil.copy(BIN / program, made / "venv" / "bin" / program)
        (packages,) = made.glob("venv/lib/python3*/site-packages")
        shutil.copytree(FOLDER / "torch_neuronx", packages / "torch_neuronx")
        described = packages / "torch_neuronx-2.9.0.2.15.dist-info"
        described.mkdir()
        (described / "METADATA").write_text("Name: torch-neuronx\nVersion: 2.9.0.2.15\n")
        yield folder
    except shutil.Error:
        output = "the environment xla cannot be linked to a folder that all can read"
        if os.environ.get("CI"):
            pytest.fail(output)
        pytest.skip(output)
    finally:
        shutil.rmtree(folder)


def test_a_target_compiles_inside_of_the_sandbox(tmp_path: Path, cache: Path) -> None:
    ran = swept(tmp_path, module("return self.f(x) * (x.sum().item() > 0)"), "xla", cache)
    assert (ran.not_run, ran.labels) == ("", {"xla": "graph_break"}), ran
    assert {finding.kind for finding in ran.findings} == {FindingClass.GRAPH_BREAK}


@pytest.mark.matrix
def test_what_neuronx_cc_rejects_is_the_compilers(tmp_path: Path, cache: Path) -> None:
    compiler = cache / "environments" / "xla" / "venv" / "bin" / "neuronx-cc"
    text = compiler.read_text()
    changed = re.sub(r"(?m)^( +asked = ).*$", r"\1'error NCC_EVRF001 no sort'", text)
    assert changed != text
    compiler.write_text(changed)
    try:
        ran = swept(tmp_path, module("return torch.relu(self.f(x))"), "neuron", cache)
    finally:
        compiler.write_text(text)
    assert {finding.kind for finding in ran.findings} == {FindingClass.COMPILER_CANNOT}
    assert "NCC_EVRF001" in ran.findings[0].evidence
