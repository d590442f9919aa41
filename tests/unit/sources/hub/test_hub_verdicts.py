"""The table of verdicts by library that README.md shows."""

from __future__ import annotations

from typing import Any

from compilewatch.records import ConfigBuild, LibraryBuild, Part, Result, Status
from scripts.hub_verdicts import HEADER, table
from tests import factories

TIMM = LibraryBuild(library="timm", name="resnet50")
TAGGER = LibraryBuild(library="elsewhere", name="tagger")
ADAPTED = ConfigBuild(config_file="/c", config_sha256="c", adapter_file="/a")


def skipped(name: str, detail: str) -> Result:
    return part(name, None, status=Status.SKIPPED, detail=detail)


def part(name: str, kind: Part | None = Part.WHOLE, **fields: Any) -> Result:
    given = {"source": "hub", "checkpoint": name.partition("#")[0], "part": kind, **fields}
    return factories.result(name, **given)


def test_a_repository_counts_once_in_the_line_of_what_builds_it() -> None:
    broken = factories.graph_break(occurrences=3)
    made = table(
        [
            part("org/a"),
            part("org/b", breaks=(broken,)),
            part("org/late", status=Status.TIMEOUT),
            part("org/timm", build=TIMM),
            part("org/lora", build=ADAPTED),
            part("org/base", Part.BASE),
            # Of a pipeline, every component has to pass.
            part("org/pipe#unet", Part.COMPONENT, component="unet"),
            part("org/pipe#vae", Part.COMPONENT, component="vae", breaks=(broken,)),
            skipped("org/pipe#checker", "belongs to the pipeline"),
            # A part of a model of another library may be a class of Transformers.
            part("org/tagger#embeddings", Part.COMPONENT, component="embeddings"),
            part("org/tagger#tagger", Part.COMPONENT, component="tagger", build=TAGGER),
            part("org/sd-lora#unet", Part.BASE_COMPONENT, component="unet"),
            skipped("org/gguf", "not PyTorch: it has only GGUF weights"),
            skipped("org/own", "remote code: not in remote_code.toml"),
            skipped("org/flair", "a model of Flair: only …"),
        ]
    )
    assert made.splitlines()[0] == HEADER
    assert made.splitlines()[2:] == [
        "| Transformers | 3 | 2 | 1 | 1 (3) | 1 |",
        "| timm | 1 | 1 | 1 | 0 (0) | 1 |",
        "| diffusers | 2 | 2 | 1 | 1 (3) | 1 |",
        "| PEFT | 2 | 2 | 2 | 0 (0) | 2 |",
        "| other libraries | 1 | 1 | 1 | 0 (0) | 1 |",
        "| not resolved | 1 | 0 | 0 | 0 (0) | 0 |",
        "| code of their own | 1 | 0 | 0 | 0 (0) | 0 |",
        "| other formats than PyTorch | 1 | 0 | 0 | 0 (0) | 0 |",
        "| all | 12 | 8 | 6 | 2 (6) | 6 |",
    ]
