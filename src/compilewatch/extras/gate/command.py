"""`compilewatch gate`: the checks of the pytest plug-in without pytest, for models by name."""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from compilewatch.api import choose
from compilewatch.api.check import CheckResult, with_numerics
from compilewatch.cli import completion, options
from compilewatch.cli.conditions import FOUND, INCOMPLETE
from compilewatch.config import Settings, load_settings
from compilewatch.errors import UsageError
from compilewatch.extras.gate import judgement
from compilewatch.extras.gate.own_code import located, source_folders
from compilewatch.extras.gate.session import GateSession, error_commands, failure
from compilewatch.plan import check_targets, place, plan
from compilewatch.records import FactoryBuild, Mode, ModelSpec, Plan, Result, Status

NamedCheck = tuple[str, CheckResult, tuple[str, ...] | None]
"""The name of a model, its result, and the file of its factory.

There is no file for a model of a library, and None if it does not lie on this machine."""


def check_named(
    root: Path,
    names: Sequence[str],
    *,
    manifest: Path | None = None,
    mode: Mode = Mode.EVAL,
    backend: str = "eager",
    dynamic: bool | None = None,
    numerics: bool = False,
    jobs: int | None = None,
    environment: str | None = None,
    limits: Mapping[str, object] | None = None,
) -> Iterator[NamedCheck]:
    """Check models by name, each in a separate process with example inputs; yield as they come.

    Names are those of `compilewatch explain`. With `manifest`, all models of that file are checked,
    too. `environment` names one with another torch (None: that of the target), `limits` are further
    settings. Raises errors of names and settings.
    """
    settings = load_settings(
        {
            **(limits or {}),
            "jobs": jobs,
            "models_file": str(manifest) if manifest else None,
            "environments": [environment] if environment else None,
        }
    )
    suffix = "" if backend == "eager" else f":{backend}"
    chosen = [f"dynamo{suffix}", *([f"inductor{suffix}"] if numerics else ())]
    targets = choose.targets_with(settings, chosen, [mode], dynamic)
    check_targets(targets)
    known = choose.described([target.name for target in targets], settings)
    placed = place(targets, settings.environments, known)
    models = _models(root, names, manifest, settings)
    named = bool(settings.environments)
    planned = plan(list(models.values()), placed, settings, known, named=named)
    by_model: dict[str, dict[str, Result]] = {}
    for result in _results(planned, settings):
        name = result.request.model.name
        results = by_model.setdefault(name, {})
        results[result.request.target.name] = result
        captured = results.get("dynamo")
        if captured is None or (numerics and len(results) < 2):
            continue
        if numerics and captured.status in (Status.PASS, Status.GRAPH_BREAK):
            captured = with_numerics(captured, results["inductor"])
        checked, folders = located_check(captured, root)
        build = models[name].build if name in models else None
        code: tuple[str, ...] | None = ()
        if isinstance(build, FactoryBuild):
            module = build.factory.partition(":")[0].replace(".", "/")
            files = located((f"{module}.py", f"{module}/__init__.py"), folders)
            code = tuple(files.values()) or None
        yield name, checked, code


def located_check(result: Result, root: Path) -> tuple[CheckResult, tuple[Path, ...]]:
    """Return a result of another process with the places of its files, and where they may lie."""
    build = result.request.model.build
    further = build.python_path if isinstance(build, FactoryBuild) else ()
    folders = source_folders(root, further)
    second = result.second_call.breaks if result.second_call is not None else ()
    breaks = (*result.breaks, *second)
    files = {graph_break.file for graph_break in breaks}
    files |= {frame.file for graph_break in breaks for frame in graph_break.user_stack}
    return CheckResult(result=result, files=located(files, folders)), folders


def _models(
    root: Path, names: Sequence[str], manifest: Path | None, settings: Settings
) -> dict[str, ModelSpec]:
    specs: list[ModelSpec] = []
    if names:
        folders = tuple(folder for folder in source_folders(root) if folder.is_dir())
        specs += choose.choose_models(
            settings, choose.Selection(names=list(names)), python_path=folders
        )[0]
    if manifest is not None:
        listed = load_settings({"source": "manifest", "models_file": str(manifest)})
        specs += choose.choose_models(listed, choose.Selection(every=True))[0]
    return {spec.name: spec for spec in specs}


def _results(planned: Plan, settings: Settings) -> Iterator[Result]:
    yield from planned.skipped
    if not planned.requests:
        return
    names = choose.environments_for({r.target.name for r in planned.requests}, settings)
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        choose.local_launcher(settings, names, single=len(planned.requests) == 1) as launcher,
    ):
        for completed in launcher.run(list(planned.requests), Path(scratch)):
            yield completed.result


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
@options.mode
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
    built in a separate process, with example inputs; the rules are those of the pytest plug-in.

    Exit statuses: 0 nothing new; 1 a check fails, or with --strict a break is resolved; 2 wrong
    input; 3 a model has no verdict.
    """
    root = judgement.project_root(Path.cwd())
    settings = judgement.project_settings(root)
    outputs = {name: values.pop(name) for name in ("sarif", "summary", "code_quality")}
    values["own"] = values["own"] or None
    rules, _, known = judgement.opened(root, values, baseline=baseline)
    names = models or (() if manifest else tuple(settings.get("models", ())))
    if manifest is None and not models and settings.get("manifest"):
        manifest = root / settings["manifest"]
    if not names and manifest is None:
        raise UsageError(
            "name a model (./FILE.py:NAME, MODULE:FACTORY) or --manifest FILE, or set models in "
            "[tool.compilewatch] of pyproject.toml"
        )
    reports: dict[str, list[judgement.CheckReport]] = {}
    for name, result, code in check_named(
        root,
        names,
        manifest=manifest,
        mode=Mode(mode),
        backend=backend,
        dynamic=dynamic,
        numerics=rules.numerics,
        jobs=jobs,
        environment=environment,
    ):
        again = f"compilewatch gate {shlex.quote(name)}"
        report = judgement.judge(result, known, rules, name=name, command=again, code=code)
        reports[name] = [report]
        if as_json:
            continue
        if report.failed and (report.problems or not update):
            click.echo(f"FAILED {name}\n{failure(report, update='--update', verbose=verbose)}\n")
        else:
            click.echo(f"passed {name}")
    session = GateSession(root, reports, update="compilewatch gate --update", baseline=baseline)
    rejected, problems = session.end(update=update, strict=strict, **outputs)
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
    failed = any(check.problems or (check.of("new") and not update) for check in decided)
    if failed or rejected:
        return FOUND
    return 0 if decided and len(decided) == len(session.checks) else INCOMPLETE
