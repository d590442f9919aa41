"""The table of extras: what is built on the core, one row and one folder each.

Where the core has a place for an extra (a command, a source, a metric), it names the module there
as text, and loads it when it is used: importing this table, or the core, imports no extra.

`pip install 'compilewatch[NAME]'` installs the packages of a row; the core needs none of them. A
module of an extra imports its packages at its top; what the core, a `--help` or another extra
imports must not import such a module before it is used.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Command(NamedTuple):
    """A command: where it is (`"module:attribute"`), and its line in the list of `--help`."""

    implementation: str
    help: str


class Extra(NamedTuple):
    """The modules of the packages that pip installs with an extra, and the extra's commands."""

    modules: tuple[str, ...] = ()
    commands: Mapping[str, Command] = MappingProxyType({})


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
    ),
    "fixes": Extra(
        modules=("pysource_minimize",),
        commands={
            "fix": Command(
                "compilewatch.extras.fixes.command:command",
                "search for changes that remove a model's graph breaks, and verify them",
            ),
        },
    ),
    "shapes": Extra(
        commands={
            "shapes": Command(
                "compilewatch.extras.shapes.command:command",
                "show how often a model compiles for the sizes that it is served with, and why",
            ),
        },
    ),
    "history": Extra(
        commands={
            "bisect": Command(
                "compilewatch.extras.history.cli:bisect_command",
                "find the release of torch or Transformers that changed a model's result",
            ),
        },
    ),
    "papers": Extra(
        modules=("boto3", "opensearchpy", "pypdf", "scipy", "sklearn", "tenacity"),
        commands={
            "papers": Command(
                "compilewatch.extras.papers.cli:command",
                "write code for research papers with a language model, check it, compile it",
            ),
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
    ),
    "cluster": Extra(modules=("ray",)),
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

COMMANDS = {name: row for extra in EXTRAS.values() for name, row in extra.commands.items()}
"""The commands of all rows, in the order of the table."""


class StoredPart(NamedTuple):
    """What an extra stores in the folder of a run: its file, and the functions that read it.

    `view` returns what the report and the sinks see, and notes; `adopt` copies it into a run that
    is merged.
    """

    file: str
    view: str
    adopt: str = ""


PARTS = {
    "profiles": StoredPart(
        "profiles.jsonl",
        "compilewatch.extras.profiles.of_run:view_of_run",
        "compilewatch.extras.profiles.store:adopt_profiles",
    ),
    "gate": StoredPart("gate.json", "compilewatch.extras.gate.of_run:view_of_run"),
    "fixes": StoredPart(
        "fixes.jsonl",
        "compilewatch.extras.fixes.run_fixes:view_of_run",
        "compilewatch.extras.fixes.run_fixes:adopt_fixes",
    ),
}

METRICS = {
    "profiles": "compilewatch.extras.profiles.metrics",
    "gate": "compilewatch.extras.gate.of_run",
    "fixes": "compilewatch.extras.fixes.run_fixes",
    "papers": "compilewatch.extras.papers.publication",
}
"""The modules with metrics of extras: `DEFINITIONS`, `LABELS` and, of a part, its `samples`."""

EVENTS = ("compilewatch.extras.gate.of_run", "compilewatch.extras.papers.publication")
"""The modules with events of extras, `EVENTS`, and what their fields mean, `MEANINGS`."""

WORK = {
    "train": "compilewatch.extras.profiles.worker.training:train",
    "fix": "compilewatch.extras.fixes.worker.evaluation:evaluate",
    "fix-regions": "compilewatch.extras.fixes.worker.evaluation:regions",
    "shapes": "compilewatch.extras.shapes.worker.tracing:trace",
    "one-graph": "compilewatch.extras.shapes.worker.one_graph:one_graph",
    "fix-script": "compilewatch.extras.fixes.worker.script:script",
}
"""What a request can name instead of its target, in a worker."""

CHILDREN = {"profile": "compilewatch.extras.profiles.worker.subject:serve"}
"""What has a child of a worker for itself: it is called with the request, in the child's folder."""

CALLS = {
    "train": "compilewatch.extras.profiles.worker.training:trained",
    "neuron-profile": "compilewatch.extras.profiles.worker.training:captured",
    "minimal": "compilewatch.extras.fixes.worker.minimal:minimal",
}
"""Verbs of `worker.process.oneshot`, which get its standard input."""

SANDBOXED = {"papers": "compilewatch.extras.papers.execution:SandboxLauncher"}
"""Sources whose models are code that nobody has reviewed, and the launchers that confine it."""

_PART_OF = {"botocore": "boto3"}
"""Modules that come with another one's package."""


def extra_with(module: str, command: str = "") -> str | None:
    """Return the extra that installs a module; of several, that of the command if it has it."""
    module = _PART_OF.get(module, module)
    having = [name for name, extra in EXTRAS.items() if module in extra.modules]
    mine = (name for name in having if command in EXTRAS[name].commands)
    return next(mine, next(iter(having), None))


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'compilewatch[{extra}]'"
