"""The wheel, installed outside the checkout with what it requires and nothing else."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch.config import cache_folder
from tests.installing import ROOT, build, call, install

pytestmark = [pytest.mark.matrix, pytest.mark.torch, pytest.mark.timeout(1800)]

# fmt: off
CLASSES = (
    "AltCLIPModel", "AyaVisionForConditionalGeneration", "BartModel", "BertModel", "BltForCausalLM",
    "CLIPModel", "DbrxForCausalLM", "DeepseekV2ForCausalLM", "Emu3ForConditionalGeneration",
    "Florence2ForConditionalGeneration", "GPT2LMHeadModel", "GraniteSpeechForConditionalGeneration",
    "JanusForConditionalGeneration", "LlamaForCausalLM", "LongformerModel", "MixtralForCausalLM",
    "Qwen2VLForConditionalGeneration", "ReformerModel", "Sam2Model", "SwitchTransformersModel",
    "T5Model", "TvpModel", "ViTModel", "VisionEncoderDecoderModel", "Wav2Vec2Model", "WhisperModel",
    "XmodModel", "ZambaForCausalLM",
)
# fmt: on
"""Half of them need an override, as a search for their model types in `data/overrides` shows."""

MYNET = """
import torch

class MyNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return y if y.sum() > 0 else -y

def build():
    return MyNet()
"""

MANIFEST = '[[model]]\nname = "team/net"\nfactory = "mynet:build"\npython_path = ".."\n'

SWEEP = ("sweep", "--models", ",".join(CLASSES), "--depth", "reduced", "--fresh", "--json")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for an environment on a disk: a copy of torch would fill the memory."""
    found = cache_folder() / "installed" / request.node.name
    found.mkdir(parents=True)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A person's folder, which is no git repository."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "mynet.py").write_text(MYNET)
    (tmp_path / "inputs" / "models.toml").write_text(MANIFEST)
    return tmp_path


def installed_files(made: Path) -> set[Path]:
    """All files of an environment but the bytecode, which Python keeps only where it can."""
    return {p for p in made.rglob("*") if p.suffix != ".pyc" and p.name != "__pycache__"}


def verdicts(folder: Path) -> dict[str, Any]:
    """Status and breaks of each result in the only run of a folder, by class."""
    path = folder / "outputs" / "latest" / "results.jsonl"
    found = {}
    for line in path.read_text().splitlines():
        result = json.loads(line)
        breaks = [
            [b[k] for k in ("code", "file", "line", "function", "occurrences")]
            for b in result["breaks"]
        ]
        found[result["request"]["model"]["name"]] = (
            result["status"],
            result["phase"],
            (result["fullgraph"] or {}).get("accepted"),
            result["graphs"],
            sorted(breaks, key=str),
        )
    return found


def test_it_has_the_verdicts_of_the_checkout(wheel: Path, made: Path, folder: Path) -> None:
    """Minutes: only the real wheel shows data, modules or requirements that are missing in it."""
    python = install(wheel, made / "venv", ["transformers"])
    call(python, *SWEEP, cwd=folder)
    (checkout := folder / "checkout").mkdir()
    subprocess.run(
        [sys.executable, "-m", "compilewatch", *SWEEP, "--output", str(checkout / "outputs")],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=1800,
    )
    expected = verdicts(checkout)
    assert expected.keys() == set(CLASSES)
    assert verdicts(folder) == expected


def test_without_transformers_models_of_a_team_are_checked(
    wheel: Path, made: Path, folder: Path
) -> None:
    """A minute: only an environment that lacks Transformers shows an import that needs it."""
    python = install(wheel, made / "venv")
    before = installed_files(made)
    explained = call(python, "explain", "./mynet.py", cwd=folder)
    assert "Data-dependent branching" in explained.stdout
    call(python, "sweep", "--source", "manifest", cwd=folder)
    assert [v[0] for v in verdicts(folder).values()] == ["graph_break"]
    call(python, "report", cwd=folder)
    assert (folder / "outputs" / "latest" / "report" / "index.html").is_file()
    assert installed_files(made) == before  # a person may be unable to write there
    said = call(python, "sweep", "--top", "1", cwd=folder, statuses=[2]).stderr
    assert said.splitlines()[-1].endswith("pip install 'compilewatch[transformers]'")
