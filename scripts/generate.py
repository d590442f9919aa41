"""Writes the generated pages of docs/, or with --check says which are out of date (status 1)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compilewatch.cli import VERBS, group
from compilewatch.sinks.prometheus import document

DOCS = Path(__file__).parent.parent / "docs"
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
    return "\n".join(lines)


def main() -> int:
    pages = {"cli.md": cli_page, "metrics.md": document}
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
