"""`compilewatch gate`: the checks of the pytest plug-in without pytest, for models by name."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from compilewatch.cli import completion, options
from compilewatch.cli.conditions import FOUND, INCOMPLETE
from compilewatch.errors import UsageError
from compilewatch.extras.gate.baseline import load
from compilewatch.extras.gate.judgement import CheckReport, judge
from compilewatch.extras.gate.named import NamedChecks
from compilewatch.extras.gate.reports import Outputs, error_commands, failure
from compilewatch.extras.gate.session import GateSession
from compilewatch.extras.gate.settings import (
    baseline_path,
    project_root,
    project_settings,
    rules_of,
)
from compilewatch.records import Mode


@click.command("gate")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=completion.models)
@click.option(
    "--manifest",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Check all models of this list, too (see `sweep --source manifest`).",
)
@click.option("--update", is_flag=True, help="Write the breaks that are met to the baseline.")
@click.option("--strict", is_flag=True, help="Fail for resolved breaks that the baseline has.")
@click.option(
    "--baseline", metavar="FILE", help="The baseline (default: compilewatch.baseline.json)."
)
@click.option(
    "--mode", type=click.Choice([m.value for m in Mode]), default=Mode.EVAL.value, show_default=True
)
@options.dynamic
@click.option("--backend", default="eager", show_default=True, help="A backend of torch.compile.")
@click.option("--own", multiple=True, metavar="PACKAGE", help="A package that is own code, too.")
@click.option(
    "--third-party",
    type=click.Choice(["report", "fail"]),
    help="What breaks in other packages do (default report).",
)
@click.option(
    "--captured-share",
    type=click.FloatRange(0, 1),
    help="Fail for a smaller share of operators in graphs.",
)
@click.option("--fullgraph", is_flag=True, default=None, help="Fail if fullgraph=True rejects one.")
@click.option("--numerics", is_flag=True, default=None, help="Compare the results with eager mode.")
@click.option(
    "--environment",
    metavar="NAME",
    help="The environment to run in, such as one with another torch.",
)
@click.option("--sarif", metavar="FILE", help="Write SARIF 2.1.0, for code scanning.")
@click.option("--summary", metavar="FILE", help="Write a summary in Markdown.")
@click.option("--code-quality", metavar="FILE", help="Write GitLab's code quality report.")
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel jobs (default: one per core).")
@options.verbose
@options.as_json
def command(
    *,
    models: tuple[str, ...],
    manifest: Path | None,
    update: bool,
    strict: bool,
    baseline: str | None,
    mode: str,
    dynamic: bool | None,
    backend: str,
    jobs: int | None,
    environment: str | None,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Fail for graph breaks in own code that the baseline of this repository does not hold.

    MODEL is ./FILE.py, ./FILE.py:NAME, MODULE:FACTORY or what else `explain` takes; without one,
    those of `models` and `manifest` in `[tool.compilewatch]` of pyproject.toml are checked. Each is
    built in a process of its own, with example inputs; the rules are those of the pytest plug-in.

    Exit statuses: 0 nothing new; 1 a check fails, or with --strict a break is resolved; 2 wrong
    input; 3 a model has no verdict.
    """
    root = project_root(Path.cwd())
    settings = project_settings(root)
    outputs = Outputs(**{name: values.pop(name) for name in ("sarif", "summary", "code_quality")})
    values["own"] = values["own"] or None
    rules = rules_of(root, settings, values)
    known = load(baseline_path(root, settings, baseline), both_sides=update)
    checks = NamedChecks(
        root=root,
        names=models or (() if manifest else tuple(settings.get("models", ()))),
        manifest=manifest or _listed(root, settings, models),
        mode=Mode(mode),
        backend=backend,
        dynamic=dynamic,
        numerics=rules.numerics,
        jobs=jobs,
        environment=environment,
    )
    if not checks.names and checks.manifest is None:
        raise UsageError(
            "name a model (./FILE.py:NAME, MODULE:FACTORY) or --manifest FILE, or set models in "
            "[tool.compilewatch] of pyproject.toml"
        )
    reports: dict[str, list[CheckReport]] = {}
    for name, result, code in checks.run():
        again = f"compilewatch gate {shlex.quote(name)}"
        report = judge(result, known, rules, name=name, command=again, code=code)
        reports[name] = [report]
        if not as_json:
            click.echo(_words(report, accepted=update and not report.problems, verbose=verbose))
    session = GateSession.of(root, reports, update="compilewatch gate --update", baseline=baseline)
    if update:
        session.renew()
    return _finish(session, outputs, update=update, strict=strict, as_json=as_json)


def _listed(root: Path, settings: dict[str, Any], models: tuple[str, ...]) -> Path | None:
    """The manifest of the settings, which is checked where no model is named."""
    name = settings.get("manifest")
    return root / name if name and not models else None


def _words(report: CheckReport, *, accepted: bool, verbose: bool) -> str:
    if report.failed and not accepted:
        return f"FAILED {report.name}\n{failure(report, update='--update', verbose=verbose)}\n"
    return f"passed {report.name}"


def _finish(
    session: GateSession, outputs: Outputs, *, update: bool, strict: bool, as_json: bool
) -> int:
    problems = [*session.problems, *outputs.write(session)]
    rejected = () if update else session.twice
    rejected += tuple(session.strict_problems()) if strict and not update else ()
    if as_json:
        options.print_json(
            {
                "checks": session.checks,
                "counts": session.counts(),
                "resolved": session.resolved,
                "baseline": session.name,
                "changes": session.changes,
            }
        )
    else:
        for line in (*session.lines(), *rejected, *error_commands(session)):
            click.echo(line)
    if problems:
        raise UsageError("; ".join(problems))
    decided = [check for check in session.checks if check.verdict]
    if any(check.problems or (check.of("new") and not update) for check in decided):
        return FOUND
    if rejected:
        return FOUND
    return 0 if decided and len(decided) == len(session.checks) else INCOMPLETE
