"""Writes the generated pages and schemas of docs/; --check only lists outdated ones (status 1)."""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch import extras, records
from compilewatch.cli import COMMANDS, group
from compilewatch.config import FILE, SECTIONS, Settings, all_types, value_of
from compilewatch.events import LABELS, all_events, all_meanings
from compilewatch.extras.executor.trainium import Prices
from compilewatch.extras.papers.calls import ModelPrices, PaperRules
from compilewatch.extras.profiles.records import PROFILE_VERSION
from compilewatch.plan import Expectations
from compilewatch.sinks import prometheus
from compilewatch.sources.hub.pulled import PulledList
from compilewatch.sources.hub.repositories import RemoteCode, ReviewedRepositories
from compilewatch.sources.own import Manifest
from compilewatch.worker.model.overrides import Overrides
from compilewatch.worker.targets.xla.target import NeuronOperators

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
EXTRAS_BEGIN = "<!-- extras: written by `make generate` from their READMEs -->"
EXTRAS_END = "<!-- end of extras -->"
NOTE = "<!-- Written by `make generate`; edit the code instead. -->\n\n"

SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "settings": (Settings, "compilewatch.toml"),
    "expectations": (Expectations, "expectations.toml"),
    "models": (Manifest, "inputs/models.toml"),
    "neuron_operators": (NeuronOperators, "neuron_operators.toml"),
    "overrides": (Overrides, "overrides/*.toml"),
    "pulled": (PulledList, "inputs/pulled/models.toml"),
    "remote_code": (RemoteCode, "inputs/remote_code.toml"),
    "model_prices": (ModelPrices, "papers/prices.toml"),
    "repositories": (ReviewedRepositories, "repositories.toml"),
    "paper_rules": (PaperRules, "papers/rules.toml"),
    "trainium_prices": (Prices, "trainium_prices.toml"),
}
"""Name of the schema -> the struct that reads the file, and the file."""

RECORDS_OF_EXTRAS = (
    "compilewatch.extras.profiles.records",
    "compilewatch.extras.profiles.training",
    "compilewatch.extras.gate.of_run",
    "compilewatch.extras.fixes.records",
    "compilewatch.extras.papers.records",
)
"""The modules that define what extras store."""


def cli_page() -> str:
    """Every verb's own help, as a page."""
    lines = ["# Command line\n"]
    context = click.Context(
        group, info_name="compilewatch", terminal_width=100, **group.context_settings
    )
    lines.append(f"```\n{group.get_help(context)}\n```\n")
    for verb in COMMANDS:
        command = group.get_command(context, verb)
        assert command is not None
        child = click.Context(command, info_name=verb, parent=context, terminal_width=100)
        lines.append(f"## {verb}\n\n```\n{command.get_help(child)}\n```\n")
        if not isinstance(command, click.Group):
            continue
        for name in command.list_commands(child):
            part = command.get_command(child, name)
            assert part is not None
            inner = click.Context(part, info_name=name, parent=child, terminal_width=100)
            lines.append(f"### {verb} {name}\n\n```\n{part.get_help(inner)}\n```\n")
    return "\n".join(lines)


def metrics_page() -> str:
    """Every metric of the core and the extras, and the values of their labels."""
    lines = [
        "# Metrics",
        "",
        "Every run writes `metrics.prom` in the Prometheus text format and pushes the same metrics",
        "to a Pushgateway if `pushgateway.url` is set. A value describes the run that it belongs",
        "to; nothing accumulates from run to run. A number that was not measured is absent, not",
        "zero.",
        "",
        "A push replaces all metrics of a group, so that models and targets that are no longer",
        "evaluated disappear. There is one group for each source and target (`target`) and one for",
        "each source (`run`: metrics about all targets of its latest run), both with the job",
        "`compilewatch`. One more group has the job `compilewatch_publisher` (`publisher`: the",
        "state of publication itself; not in the file), and two have the job `compilewatch_papers`",
        "(`papers`: what became of the stored papers, by the origin of the code).",
        "",
        "`compile_breaks_total` has the type counter because of its name, but starts again with",
        "every run: query it with `sum by (model, commit, reason) (compile_breaks_total)`, not",
        "with `rate()`. All other metrics are gauges.",
        "",
        "| Metric | Group | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    for definition in prometheus.all_definitions():
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        lines.append(
            f"| `{definition.name}` | {definition.group.name} | {labels} | {definition.help} |"
        )
    lines += ["", "## Labels", "", "| Label | Values |", "|---|---|"]
    lines += [f"| `{label}` | {meaning} |" for label, meaning in prometheus.all_labels().items()]
    return "\n".join(lines) + "\n"


def struct_section(
    struct: type[msgspec.Struct], title: str, meanings: Mapping[str, str] | None = None
) -> str:
    """A struct's docstring, and its fields with their types as written in the source."""
    lines = [f"## {title}\n"]
    documentation = inspect.cleandoc(struct.__dict__.get("__doc__") or "")
    if documentation:
        lines.append(documentation.replace("\n", " ").replace("  ", "\n\n") + "\n")
    columns = ("field", "type", "meaning") if meanings else ("field", "type")
    lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    annotations = {
        k: v for c in reversed(struct.__mro__) for k, v in inspect.get_annotations(c).items()
    }
    stored = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    for field, name in stored:
        annotation = annotations[field]
        written = (
            annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        )
        written = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", written).replace("|", "\\|")
        meaning = f" {meanings[field]} |" if meanings else ""
        lines.append(f"| `{name}` | `{written}` |{meaning}")
    return "\n".join(lines) + "\n"


def _in_order() -> Iterator[type]:
    """Every public class of the records, by module and in the order of its source."""
    for name in (records.__name__, *RECORDS_OF_EXTRAS):
        module = importlib.import_module(name)
        for record in vars(module).values():
            own = inspect.isclass(record) and record.__module__ == module.__name__
            if own and record is not records.Record:
                yield record


def records_page() -> str:
    """Every record that is stored, in the order of the source."""
    found = list(_in_order())
    structs = [each for each in found if issubclass(each, records.Record)]
    enums = [each for each in found if issubclass(each, StrEnum)]
    lines = [
        "# Records\n",
        f"Versions: results {records.RESULT_VERSION}, runs {records.RUN_VERSION}, "
        f"profiles {PROFILE_VERSION}, other files "
        f"{records.SCHEMA_VERSION}. A field that is null was not measured.\n",
    ]
    for enum in enums:
        values = ", ".join(f"`{member.value}`" for member in enum)
        lines.append(f"- `{enum.__name__}`: {values}")
    lines.append("")
    return "\n".join([*lines, *(struct_section(struct, struct.__name__) for struct in structs)])


def events_page() -> str:
    """Every event of the log."""
    labels = ", ".join(f"`{name}`" for name in LABELS)
    lines = [
        "# Log events\n",
        "`logs/<run>.jsonl`: one JSON object a line; `event` names its kind.\n",
        "In Loki the line is the object itself and its time is `ts`. Labels are `service_name`,\n"
        f"{labels}; the other fields are\n"
        "structured metadata, except for objects and lists, which are in the line only.\n",
    ]
    sections = (
        struct_section(e, f"`{e.__struct_config__.tag}`", all_meanings()) for e in all_events()
    )
    return "\n".join([*lines, *sections])


def setting_comments() -> dict[str, str]:
    """Setting (`deadlines.x` for the table) -> the comment above it in compilewatch.toml."""
    comments: dict[str, str] = {}
    comment: list[str] = []
    table = ""
    for line in (ROOT / FILE).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
        elif heading := re.fullmatch(r"\[(\w+)\]", line):
            table = f"{heading[1]}."
            comment = []
        elif setting := re.match(r"(\w+) = ", line):
            comments[table + setting[1]] = " ".join(comment)
            comment = []
        else:
            comment = []
    return comments


def settings_page() -> str:
    """Every setting with its variable, default and meaning."""
    comments = setting_comments()
    if set(comments) != set(all_types()):
        raise SystemExit(f"{FILE} lacks, or invents: {set(comments) ^ set(all_types())}")
    lines = [
        "# Settings\n",
        "`compilewatch.toml` is read from the current folder, from the nearest folder above it\n"
        "that contains one, or from the checkout. A variable `COMPILEWATCH_<SETTING>` takes\n"
        "precedence over the file, and a flag over both: `COMPILEWATCH_JOBS=4`. `loki.url` is\n"
        "`url` in the table `[loki]`, or the variable `COMPILEWATCH_LOKI_URL`. Relative paths in\n"
        "the file are relative to it. `COMPILEWATCH_PLAIN_TORCH=1` is for the workers and not a\n"
        "setting: see [what is replaced in PyTorch](plain-torch.md).\n",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for name, comment in comments.items():
        value = value_of(Settings(), name)
        meaning = comment.replace("|", "\\|")
        lines.append(f"| `{name}` | `{msgspec.json.encode(value).decode()}` | {meaning} |")
    return "\n".join(lines)


def schema(name: str) -> str:
    """The JSON schema of one TOML file."""
    struct, file = SCHEMAS[name]
    built: dict[str, Any] = msgspec.json.schema(struct)
    built["$defs"][struct.__name__].pop("title", None)  # may be the name of a private class
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"compilewatch: {file}",
    }
    if name == "settings":
        for key, meaning in setting_comments().items():
            table, _, field = key.rpartition(".")
            owner = built["$defs"][(SECTIONS[table] if table else Settings).__name__]
            owner["properties"][field]["description"] = meaning
        for section in SECTIONS.values():
            built["$defs"][section.__name__]["additionalProperties"] = False
    return json.dumps(head | built, indent=2, ensure_ascii=False) + "\n"


def readme() -> str:
    """The README, with what the READMEs of the extras say of their verification."""
    text = README.read_text(encoding="utf-8")
    before, begin, rest = text.partition(EXTRAS_BEGIN)
    _, end, after = rest.partition(EXTRAS_END)
    if not begin or not end:
        raise SystemExit("README.md lacks the markers of the extras' table")
    rows = ["| extra | verified against | not yet |", "|---|---|---|"]
    for path in [ROOT / f"src/compilewatch/extras/{name}/README.md" for name in extras.EXTRAS]:
        own = path.read_text(encoding="utf-8") if path.exists() else ""
        _, _, verified = own.partition("\n## Verified\n")
        rows += [line for line in verified.splitlines() if line.startswith("| ")][1:]
    table = "\n".join(rows)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def main() -> int:
    pages = {
        "cli.md": cli_page,
        "events.md": events_page,
        "metrics.md": metrics_page,
        "records.md": records_page,
        "settings.md": settings_page,
    }
    texts = {name: NOTE + build().rstrip() + "\n" for name, build in pages.items()}
    texts |= {f"schemas/{name}.schema.json": schema(name) for name in SCHEMAS}
    texts["../README.md"] = readme()
    stale = []
    for name, text in texts.items():
        path = DOCS / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    said = "is out of date: run `make generate`" if "--check" in sys.argv else "written"
    for name in stale:
        print(f"{(DOCS / name).resolve().relative_to(ROOT.resolve())} {said}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
