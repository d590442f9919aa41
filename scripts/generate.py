"""Writes the generated pages of docs/, or with --check says which are out of date (status 1)."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import click
import msgspec

from compilewatch import records
from compilewatch.cli import VERBS, group
from compilewatch.events import EVENTS, LABELS, MEANINGS
from compilewatch.sinks.metric_definitions import metrics_page

DOCS = Path(__file__).parent.parent / "docs"
RECORD_MODULES = (
    *("base", "requests", "breaks", "details.numerics", "details.export", "details.performance"),
    *("details.xla", "details.neuron", "results", "runs"),
)
NOTE = "<!-- Written by `make generate`; edit the code instead. -->\n\n"


def cli_page() -> str:
    """Every verb's own help, as a page."""
    lines = ["# Command line\n"]
    context = click.Context(group, info_name="compilewatch", terminal_width=100)
    lines.append(f"```\n{group.get_help(context)}\n```\n")
    for verb in VERBS:
        command = group.get_command(context, verb)
        assert command is not None
        child = click.Context(command, info_name=verb, parent=context, terminal_width=100)
        lines.append(f"## {verb}\n\n```\n{command.get_help(child)}\n```\n")
        for name, part in getattr(command, "commands", {}).items():
            inner = click.Context(part, info_name=name, parent=child, terminal_width=100)
            lines.append(f"### {verb} {name}\n\n```\n{part.get_help(inner)}\n```\n")
    return "\n".join(lines)


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
    for field in struct.__struct_fields__:
        written = str(annotations[field]).replace("|", "\\|")
        meaning = f" {meanings[field]} |" if meanings else ""
        lines.append(f"| `{field}` | `{written}` |{meaning}")
    return "\n".join(lines) + "\n"


def _in_order() -> Iterator[type]:
    """Every public class of the records, by module and in the order of its source."""
    for name in RECORD_MODULES:
        module = importlib.import_module(f"{records.__name__}.{name}")
        for each in vars(module).values():
            own = inspect.isclass(each) and each.__module__ == module.__name__
            if own and each is not records.Record:
                yield each


def records_page() -> str:
    """Every record that is stored, in the order of the source."""
    found = list(_in_order())
    structs = [each for each in found if issubclass(each, records.Record)]
    enums = [each for each in found if issubclass(each, StrEnum)]
    lines = [
        "# Records\n",
        f"Versions: results {records.RESULT_VERSION}, runs {records.RUN_VERSION}, other files "
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
    sections = (struct_section(e, f"`{e.__struct_config__.tag}`", MEANINGS) for e in EVENTS)
    return "\n".join([*lines, *sections])


def main() -> int:
    pages = {
        "cli.md": cli_page,
        "events.md": events_page,
        "metrics.md": metrics_page,
        "records.md": records_page,
    }
    stale = []
    for name, build in pages.items():
        path, text = DOCS / name, NOTE + build().rstrip() + "\n"
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    said = "is out of date: run `make generate`" if "--check" in sys.argv else "written"
    for name in stale:
        print(f"docs/{name} {said}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
