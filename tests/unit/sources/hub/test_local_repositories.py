"""The script that makes repositories like those of a list of the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from compilewatch.sources.hub.repositories import HubSource
from compilewatch.sources.transformers import scan
from scripts import local_repositories

LIST = """model_id,downloads,task,library,model_type,parameters,license,custom_code,top999
org/acorn,90,text-generation,transformers,acorn,1,mit,,yes
org/acorn-AWQ,80,text-generation,transformers,acorn,1,,,yes
org/acorn-GGUF,70,text-generation,transformers,acorn,1,,,yes
org/embedding,60,sentence-similarity,sentence-transformers,acorn,1,,,yes
org/published,55,sentence-similarity,sentence-transformers,,1,,,yes
timm/resnet50.a1_in1k,50,image-classification,timm,,1,,,yes
org/stable-diffusion,40,text-to-image,diffusers,,,,,yes
org/CLIP,30,zero-shot-image-classification,open_clip,clip,,,,yes
pyannote/segmentation,20,,pyannote-audio,,,,,yes
org/own,10,text-generation,transformers,,1,,yes,yes
"""


def test_the_columns_of_a_list_decide_what_is_made(
    tmp_path: Path, miniature: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_repositories, "read_library", lambda: scan(miniature))
    monkeypatch.setattr(
        local_repositories, "HubSource", lambda path: HubSource(path=path, transformers=miniature)
    )
    published = tmp_path / "chains" / "published"
    (published / "1_Pooling").mkdir(parents=True)
    (published / "modules.json").write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
    )
    (published / "config.json").write_text('{"model_type": "acorn", "hidden_size": 24}')
    (published / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 24}')
    monkeypatch.setattr(local_repositories, "SENTENCE_TRANSFORMERS", tmp_path / "chains")
    listing = tmp_path / "list.csv"
    listing.write_text(LIST)
    output = tmp_path / "pulled"

    done = CliRunner().invoke(
        local_repositories.command, [str(listing), "--output", str(output)], catch_exceptions=False
    )

    kinds = {line.strip() for line in done.output.splitlines()}
    assert {
        "1  evaluated: transformers, whole",
        "1  evaluated: transformers, whole, quantised",
        "1  not PyTorch: it has only GGUF weights",
        "2  evaluated: sentence-transformers, whole",
        "1  evaluated: timm, whole",
        "1  evaluated: diffusers, pipeline",
        "1  evaluated: open_clip, whole",
        "1  remote code: its repository and revision are not in remote_code.toml",
        "resolved: 7 of 9 (77.8%), of all PyTorch repositories",
        "resolved: 7 of 7 (100.0%), of those of the libraries that are built",
    } <= kinds
    specs = HubSource(path=output / "models.toml", transformers=miniature).models()
    assert specs[0].architecture == "AcornForCausalLM"
    unet = next(spec for spec in specs if spec.name == "org/stable-diffusion#unet")
    assert unet.skip_reason is None
    # A chain of the reviewed inputs is the one of the repository with its name.
    (config,) = output.glob("configs/*--published/*/config.json")
    assert '"hidden_size":24' in config.read_text()
    # Only configuration files are made.
    assert {path.suffix for path in output.rglob("*") if path.is_file()} == {".json", ".toml"}
