"""Records what commands say about many models, and compares two records.

    python -m scripts.golden record DIR [--only NAME,NAME]
    python -m scripts.golden compare BEFORE AFTER

A change of the structure must not change a verdict. `record` runs the `compilewatch` beside this
interpreter and stores one JSON file a step; `compare` prints each difference and exits with status
1 if there is one. Times, sizes of memory, identifiers of runs and keys are left out, and of
profiles all numbers. A step whose environment is missing fails, unless it is left out by `--only`.
All steps take about an hour of two cores. The environments `libraries` and `xla` are needed.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import click
from rich.progress import track

PROGRAM = Path(sys.executable).with_name("compilewatch")

EXPLAINED = [
    *("BertModel", "BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "MistralModel"),
    *("MixtralModel", "T5Model", "T5ForConditionalGeneration", "BartModel"),
    *("LongformerModel", "BigBirdModel", "ReformerModel", "FunnelModel", "XLNetModel"),
    *("DebertaV2Model", "ViTModel", "SwinModel", "DetrModel", "CLIPModel", "SiglipModel"),
    *("WhisperForConditionalGeneration", "Wav2Vec2Model", "HubertModel", "EncodecModel"),
    *("MimiModel", "Qwen2VLModel", "LlavaForConditionalGeneration", "TimesFmModel"),
    *("PatchTSTModel", "MambaModel"),
]
COMPILED = (
    "BertModel,GPT2Model,ViTModel,T5Model,LlamaModel,CLIPModel,LongformerModel,ResNetModel,"
    "Wav2Vec2Model,MixtralModel"
)
FIXED = [
    *("LongformerModel", "FunnelModel", "BigBirdModel", "ReformerModel", "Qwen2VLModel"),
    *("AriaForConditionalGeneration", "OpenAIPrivacyFilterModel", "PaliGemmaModel"),
    *("XLNetModel", "DetrModel", "MimiModel", "T5Model"),
]
LIBRARIES = ("timm", "torchvision", "diffusers", "sentence-transformers", "open_clip")

_SWEEP = ("sweep", "--depth", "reduced", "--baseline", "none", "--fresh")

SWEEPS: dict[str, tuple[str, ...]] = {
    "library": (
        *(*_SWEEP, "--source", "library", "--all", "--shard", "1/16"),
        *("--modes", "eval,train"),
    ),
    **{
        name: (*_SWEEP, "--source", name, "--all", "--shard", "1/8", "--environments", "libraries")
        for name in LIBRARIES
    },
    "compiled": (*_SWEEP, "--models", COMPILED, "--targets", "export,inductor"),
    "xla": (*_SWEEP, "--models", COMPILED, "--targets", "xla"),
    "cuda": (*_SWEEP, "--models", COMPILED, "--device", "cuda"),
}
"""Step -> the sweep whose results are recorded."""

PRINTED: dict[str, tuple[tuple[str, ...], ...]] = {
    "explain": tuple(("explain", name, "--json") for name in EXPLAINED),
    "fix": tuple(("fix", name, "--json") for name in FIXED),
    "reproduce": tuple(("reproduce", name) for name in EXPLAINED[:10]),
    "minimal": tuple(("reproduce", name, "--minimal") for name in FIXED[:10]),
    "papers": (
        ("papers", "run", "--random", "--max-papers", "100", "--provider", "scripted", "--json"),
    ),
}
"""Step -> the commands whose output is recorded."""

FIGURES: dict[str, tuple[str, ...]] = {
    "profile-infer": (
        *("profile", "infer", "BertModel", "--size", "reduced", "--batch-sizes", "1,4"),
        *("--max-length", "32", "--max-seconds", "6", "--json"),
    ),
    "profile-train": ("profile", "train", "BertModel", "--depth", "reduced", "--json"),
}
"""Step -> the command of whose output the names of the figures are recorded, not their values."""

VOLATILE = {
    *("key", "device", "deadlines", "environment_digest", "schema_version"),
    *("harness_version", "durations", "run", "run_id", "peak_memory_bytes", "started_at"),
    *("ended_at", "created_at", "reused_from", "seconds", "elapsed_seconds", "id", "path"),
    *("folder", "artifacts", "log_file", "latency_seconds", "latency_samples", "speedup"),
    *("duration_seconds", "cold_compile_seconds", "warm_compile_seconds", "head", "tail"),
    *("compiled_latency_seconds", "eager_latency_seconds", "compiler_peak_memory_bytes"),
}
"""Fields that differ from run to run, or that a change of the worker's files changes."""

MEASURED = re.compile(r'\d[\d.,]* ?(?:ms|s|min|kB|MB|MiB|GiB)\b|/[^\s"]*/outputs?\b|/tmp/[\w./-]+')
"""Times, sizes and temporary paths inside of sentences."""

UNSTABLE = re.compile(r"0x[0-9a-f]+|[\d.]+ times as fast")
"""Addresses and times inside of sentences about a model."""


def stable(value: Any, *, figures: bool = False, volatile: Set[str] = VOLATILE) -> Any:
    """Return a decoded JSON value without its volatile fields; with `figures` without numbers."""
    if isinstance(value, dict):
        return {
            name: stable(part, figures=figures, volatile=volatile)
            for name, part in value.items()
            if name not in volatile
        }
    if isinstance(value, list):
        return [stable(part, figures=figures, volatile=volatile) for part in value]
    value = UNSTABLE.sub("…", value) if isinstance(value, str) else value
    return "a number" if figures and isinstance(value, int | float) else value


def stable_papers(printed: str) -> Any:
    """Return papers by their ids: they come in random order, and name times and paths."""
    papers = sorted(json.loads(printed), key=lambda paper: str(paper["paper"]))
    text = re.sub(r"\d{8}T[\d.]+Z", "", MEASURED.sub("…", json.dumps(papers)))
    return stable(json.loads(text), volatile=VOLATILE | {"at", "numbers"})


def run(arguments: tuple[str, ...], outputs: Path) -> str:
    """Run a command and return its standard output. Raises ClickException if it ends by a fault."""
    stores = arguments[0] not in ("explain", "reproduce", "fix")
    command = [str(PROGRAM), *arguments, *(("--output", str(outputs)) if stores else ())]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode not in (0, 1, 3):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if arguments[0] == "reproduce":  # what it refuses to reproduce, and why, is a result, too
            return last
        raise click.ClickException(f"{' '.join(arguments)} ended with {done.returncode}: {last}")
    return done.stdout


def recorded(name: str, outputs: Path) -> dict[str, Any]:
    """Run one step and return what it found, by model, target and mode or by command."""
    if name in SWEEPS:
        run(SWEEPS[name], outputs)
        lines = (outputs / "latest" / "results.jsonl").read_text().splitlines()
        return {label_of(result): stable(result) for result in map(json.loads, lines)}
    if name in FIGURES:
        printed = json.loads(run(FIGURES[name], outputs))
        return {name: stable(printed, figures=True)}
    texts = {" ".join(arguments): run(arguments, outputs) for arguments in PRINTED[name]}
    if name == "papers":
        return {command: stable_papers(text) for command, text in texts.items()}
    return {
        command: stable(json.loads(text)) if "--json" in command else text
        for command, text in texts.items()
    }


def label_of(result: dict[str, Any]) -> str:
    """Return the name of a result that is the same in two records."""
    request = result["request"]
    target = request["target"]
    parts = (request["model"]["name"], target["name"], target["mode"], result.get("variant", ""))
    return " ".join(filter(None, parts))


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each value that differs, with its place."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name), after.get(name), f"{place}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif before != after:
        yield f"{place}: {json.dumps(before)[:200]} -> {json.dumps(after)[:200]}"


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--only", default="", help="These steps, separated by commas.")
def record(folder: Path, only: str) -> None:
    """Run all steps that FOLDER does not have yet."""
    steps = (*SWEEPS, *PRINTED, *FIGURES)
    chosen = tuple(filter(None, only.split(","))) or steps
    if unknown := set(chosen) - set(steps):
        raise click.UsageError(f"unknown steps {sorted(unknown)}; there are {', '.join(steps)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in track(chosen, "recording"):
        file = folder / f"{name}.json"
        if file.exists():
            continue
        with tempfile.TemporaryDirectory() as outputs:
            results = recorded(name, Path(outputs))
        file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


@main.command()
@click.argument("before", type=click.Path(path_type=Path, exists=True))
@click.argument("after", type=click.Path(path_type=Path, exists=True))
def compare(before: Path, after: Path) -> None:
    """Print each difference; the exit status is 1 if there is one or a step is missing."""
    names = sorted({file.name for file in (*before.glob("*.json"), *after.glob("*.json"))})
    if not names:
        raise click.UsageError("neither folder has a recorded step")
    count = 0
    for name in names:
        pair = [folder / name for folder in (before, after)]
        if missing := [file for file in pair if not file.exists()]:
            click.echo(f"{missing[0]}: missing")
            count += 1
            continue
        for line in differences(*(json.loads(file.read_text()) for file in pair)):
            click.echo(f"{name}{line}")
            count += 1
    click.echo(f"{count} differences in {len(names)} steps")
    sys.exit(int(count > 0))


if __name__ == "__main__":
    main()
