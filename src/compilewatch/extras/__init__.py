"""The table of extras: what is built on the core, one row and one folder each.

The core imports no extra. Where it has a place for one (a command, a source, a launcher, a metric),
it reads this table, which imports nothing, and loads what a row names when it is used. A row whose
folder is missing adds nothing to these places, and its commands say what to install.

`pip install 'compilewatch[NAME]'` installs the packages of a row; the core needs none of them. A
module of an extra imports its packages at its top; what the core, a `--help` or another extra
imports must not import such a module before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_NONE: Mapping[str, str] = MappingProxyType({})


class Command(NamedTuple):
    """A command: where it is (`"module:attribute"`), and its line in the list of `--help`."""

    implementation: str
    help: str


class Extra(NamedTuple):
    """What an extra needs and what it adds to the core. References are `"module:attribute"`.

    `modules` are those of the packages that pip installs with it, and `records` the modules that
    define what it stores. `settings` are its tables of compilewatch.toml. `run_file` is its file in
    the folder of a run: what it provides for runs is loaded where that file is. In a worker, `work`
    is what a request can name instead of its target, and `calls` are verbs of
    `worker.process.oneshot`, which get its standard input. `provides` are the functions and tables
    that the core uses at a place of its own, by the name of the place.
    """

    modules: tuple[str, ...] = ()
    commands: Mapping[str, Command] = MappingProxyType({})
    records: tuple[str, ...] = ()
    settings: Mapping[str, str] = _NONE
    run_file: str = ""
    sources: Mapping[str, str] = _NONE
    launchers: Mapping[str, str] = _NONE
    work: Mapping[str, str] = _NONE
    calls: Mapping[str, str] = _NONE
    provides: Mapping[str, str] = _NONE


EXTRAS: dict[str, Extra] = {
    "publish": Extra(modules=("boto3", "logging_loki", "requests", "tenacity")),
    "transformers": Extra(
        modules=("transformers", "huggingface_hub", "httpx2", "PIL", "scipy", "tenacity"),
        commands={
            "pull": Command(
                "compilewatch.cli.machine:pull_command",
                "fetch the list of the Hub's most used models and pin their revisions",
            ),
        },
    ),
    "profiles": Extra(
        modules=("matplotlib", "numpy", "psutil", "scipy"),
        commands={
            "profile": Command(
                "compilewatch.extras.profiles.cli:command",
                "measure latency, throughput and memory, and what graph breaks cost",
            ),
        },
        records=(
            "compilewatch.extras.profiles.records",
            "compilewatch.extras.profiles.training",
        ),
        run_file="profiles.jsonl",
        work={"train": "compilewatch.extras.profiles.worker.training:train"},
        calls={
            "train": "compilewatch.extras.profiles.worker.training:trained",
            "neuron-profile": "compilewatch.extras.profiles.worker.training:captured",
        },
        provides={
            "profiles of a run": "compilewatch.extras.profiles.of_run:profile_run",
            "view": "compilewatch.extras.profiles.of_run:view_of_run",
            "merge": "compilewatch.extras.profiles.store:adopt_profiles",
            "run_samples": "compilewatch.extras.profiles.metrics:samples",
            "metrics": "compilewatch.extras.profiles.metrics:DEFINITIONS",
            "metric_labels": "compilewatch.extras.profiles.metrics:LABELS",
        },
    ),
    "gate": Extra(
        commands={
            "gate": Command(
                "compilewatch.extras.gate.command:command",
                "fail for new graph breaks in a repository's own code, by its baseline",
            ),
            "init": Command(
                "compilewatch.extras.gate.init:command",
                "write a test, settings and a workflow of the gate into a repository",
            ),
        },
        records=("compilewatch.extras.gate.of_run",),
        run_file="gate.json",
        provides={
            "after a run of manifest": "compilewatch.extras.gate.of_run:judge_run",
            "view": "compilewatch.extras.gate.of_run:view_of_run",
            "run_samples": "compilewatch.extras.gate.of_run:samples",
            "metrics": "compilewatch.extras.gate.of_run:DEFINITIONS",
            "metric_labels": "compilewatch.extras.gate.of_run:LABELS",
            "events": "compilewatch.extras.gate.of_run:EVENTS",
            "event_meanings": "compilewatch.extras.gate.of_run:MEANINGS",
        },
    ),
    "fixes": Extra(
        modules=("pysource_minimize",),
        commands={
            "fix": Command(
                "compilewatch.extras.fixes.command:command",
                "search for changes that remove a model's graph breaks, and verify them",
            ),
        },
        records=("compilewatch.extras.fixes.records",),
        run_file="fixes.jsonl",
        work={
            "fix": "compilewatch.extras.fixes.worker.evaluation:evaluate",
            "fix-regions": "compilewatch.extras.fixes.worker.evaluation:regions",
            "fix-script": "compilewatch.extras.fixes.worker.script:script",
        },
        calls={
            "minimal": "compilewatch.extras.fixes.worker.minimal.verb:minimal",
        },
        provides={
            "fix": "compilewatch.extras.fixes.fixing:fix_named",
            "merge": "compilewatch.extras.fixes.of_run.view:adopt_fixes",
            "view": "compilewatch.extras.fixes.of_run.view:view_of_run",
            "fixes": "compilewatch.extras.fixes.of_run.view:fixes_of_run",
            "minimal reproducer": "compilewatch.extras.fixes.minimal_reproducer:write",
            "run_samples": "compilewatch.extras.fixes.of_run.view:samples",
            "metrics": "compilewatch.extras.fixes.of_run.view:DEFINITIONS",
            "metric_labels": "compilewatch.extras.fixes.of_run.view:LABELS",
        },
    ),
    "history": Extra(
        commands={
            "bisect": Command(
                "compilewatch.extras.history.cli:bisect_command",
                "find the release of torch or Transformers that changed a model's result",
            ),
        },
        provides={"attribution": "compilewatch.extras.history.cli:print_attributions"},
    ),
    "papers": Extra(
        modules=("boto3", "opensearchpy", "pypdf", "scipy", "sklearn", "tenacity"),
        commands={
            "papers": Command(
                "compilewatch.extras.papers.cli:command",
                "write code for research papers with a language model, check it, compile it",
            ),
        },
        records=("compilewatch.extras.papers.records",),
        settings={
            "papers": "compilewatch.extras.papers.settings:PapersSettings",
            "cloudwatch": "compilewatch.extras.papers.settings:CloudWatchSettings",
        },
        sources={"papers": "compilewatch.extras.papers.execution:PapersSource"},
        provides={
            "metrics": "compilewatch.extras.papers.publication:DEFINITIONS",
            "metric_labels": "compilewatch.extras.papers.publication:LABELS",
            "events": "compilewatch.extras.papers.publication:EVENTS",
            "event_meanings": "compilewatch.extras.papers.publication:MEANINGS",
        },
    ),
    "executor": Extra(
        modules=("boto3", "httpx2", "starlette", "tenacity", "uvicorn"),
        commands={
            "executor": Command(
                "compilewatch.extras.executor.cli:command",
                "run unreviewed code in sandboxes: the service, and commands that submit jobs",
            ),
            "trainium": Command(
                "compilewatch.extras.executor.cli:trainium_command",
                "start the Trainium instance, stop it, and show what it costs",
            ),
        },
        settings={
            "trainium": "compilewatch.extras.executor.settings:TrainiumSettings",
            "executor": "compilewatch.extras.executor.settings:ExecutorSettings",
        },
        provides={"doctor": "compilewatch.extras.executor.cli:sandbox_check"},
    ),
    "cluster": Extra(
        modules=("ray",),
        launchers={"ray": "compilewatch.extras.cluster.launcher:RayLauncher"},
    ),
    "gpu": Extra(modules=("pynvml",)),
    "monitor": Extra(
        modules=("streamlit",),
        commands={
            "monitor": Command(
                "compilewatch.extras.monitor.cli:command",
                "serve a local page about runs and profiles, which follows those that run",
            ),
        },
    ),
}
"""If several have a module, the first one is named to whoever uses none of their commands."""

SANDBOXED = {"papers": "compilewatch.extras.papers.execution:SandboxLauncher"}
"""Sources whose models are code that nobody has reviewed, and the launchers that confine it."""

_PART_OF = {"botocore": "boto3"}
"""Modules that come with another one's package."""


def commands() -> dict[str, Command]:
    """Return the commands of all rows, in the order of the table."""
    return {name: command for extra in EXTRAS.values() for name, command in extra.commands.items()}


def rows(table: str) -> dict[str, str]:
    """Return what the extras of this installation add to a table of the core, by name.

    `table` is a field of `Extra` with references.
    """
    return {
        name: reference
        for extra in EXTRAS.values()
        for name, reference in getattr(extra, table).items()
        if is_here(reference)
    }


def providers(place: str) -> Iterator[str]:
    """Yield the references that the extras of this installation have for a place of the core."""
    for extra in EXTRAS.values():
        reference = extra.provides.get(place)
        if reference is not None and is_here(reference):
            yield reference


def of_run(folder: Path, place: str) -> Iterator[tuple[str, str]]:
    """Yield (extra, reference) of those with a file in the folder of a run, for a place."""
    for name, extra in EXTRAS.items():
        reference = extra.provides.get(place)
        stored = extra.run_file and (folder / extra.run_file).exists()
        if stored and reference is not None and is_here(reference):
            yield name, reference


def folders() -> tuple[str, ...]:
    """Return the folders of all extras of the table, whether they are here or not."""
    names: dict[str, None] = {}
    for extra in EXTRAS.values():
        references = [command.implementation for command in extra.commands.values()]
        references += [*extra.launchers.values(), *extra.provides.values()]
        names |= dict.fromkeys(filter(None, map(extra_of, references)))
    return tuple(names)


def is_here(reference: str) -> bool:
    """Whether the folder of the extra is there that a reference leads into."""
    folder = extra_of(reference)
    return folder is None or Path(__file__).with_name(folder).is_dir()


def extra_of(reference: str) -> str | None:
    """Return the extra whose code a module or a reference names; None for the core's."""
    before, _, rest = reference.partition(f"{__name__}.")
    return rest.partition(":")[0].partition(".")[0] if rest and not before else None


def extra_with(module: str, command: str = "") -> str | None:
    """Return the extra that installs a module; of several, that of the command if it has it."""
    module = _PART_OF.get(module, module)
    having = [name for name, extra in EXTRAS.items() if module in extra.modules]
    mine = (name for name in having if command in EXTRAS[name].commands)
    return next(mine, next(iter(having), None))


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'compilewatch[{extra}]'"
