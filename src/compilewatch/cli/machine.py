"""Commands about this machine: `doctor`, `env`, `list-targets`, `list-sources` and `pull`."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from compilewatch import environments as interpreters
from compilewatch import extras, plugins
from compilewatch.api import choose
from compilewatch.cli import options
from compilewatch.config import Places, Settings, load_settings
from compilewatch.contract.libraries import LIBRARIES
from compilewatch.contract.messages import Readiness
from compilewatch.contract.processes import program
from compilewatch.contract.targets import CPU, TARGETS, device_kinds
from compilewatch.data import read_overrides
from compilewatch.environments import INTERPRETERS, Environments, create_command
from compilewatch.environments.creation import create, recipe_of, remove, sizes_of
from compilewatch.errors import CompilewatchError, ConfigError, InterpreterError
from compilewatch.launchers.local.launcher import cannot_fork
from compilewatch.neuron import installed
from compilewatch.plan import check_targets, load_expectations, needs, place, targets_of
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment, Record, Target
from compilewatch.report.terminal import console, plain, spaced, table
from compilewatch.report.wording import plural
from compilewatch.sources import make_source, source_names
from compilewatch.sources.hub.pulled import SORTS, PulledQuery, PullReport
from compilewatch.sources.libraries import PackageSource
from compilewatch.sources.own import ManifestSource


class DoctorCheck(Record, frozen=True, kw_only=True):
    """One line of output. `state` is ok, note (optional) or failed (a sweep cannot run)."""

    name: str
    state: str
    fact: str
    advice: str = ""


def _judged(
    name: str, fact: str, ok: bool = True, advice: str = "", *, otherwise: str = "note"
) -> DoctorCheck:
    state, advice = ("ok", "") if ok else (otherwise, advice)
    return DoctorCheck(name=name, state=state, fact=fact, advice=advice)


def _interpreter(fresh: bool) -> Iterator[DoctorCheck]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield _judged("python", f"{version} at {sys.executable}")
    try:
        default = Environments().describe("default", fresh=fresh)
    except CompilewatchError as error:
        yield _judged("torch", str(error), False, "pip install torch", otherwise="failed")
        return
    facts = f"{default.torch} (git {default.torch_git[:10]}), device {default.device}"
    yield _judged("torch", facts)
    yield _judged(
        "transformers",
        default.transformers or "not installed: models of your own can be checked",
        bool(default.transformers),
        extras.install("transformers"),
    )
    yield _worker(fresh=fresh)


def _worker(*, fresh: bool = False) -> DoctorCheck:
    """Whether the first step of a sweep works: a worker starts and compiles a model."""
    try:
        measured, checked_at = choose.working(Environments(), DEFAULT_ENVIRONMENT, fresh=fresh)
    except CompilewatchError as error:
        advice = (
            "`make clean setup` installs torch and transformers again; if that does not "
            "help, report this line with the output of: compilewatch env check default --json"
        )
        return _judged("worker", str(error), False, advice, otherwise="failed")
    return _judged(
        "worker",
        f"ready after {measured.start_seconds:.1f} s, compiled a small model within "
        f"{measured.request_seconds:.1f} s; checked at {checked_at[:19].replace('T', ' ')} UTC",
        measured.threads == 1,
        cannot_fork(DEFAULT_ENVIRONMENT, measured.threads),
    )


def _machine(settings: Settings) -> Iterator[DoctorCheck]:
    cores = os.cpu_count() or 1
    yield _judged("cores", f"{cores}; a sweep runs {plural(settings.jobs, 'job')}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    job_bytes = settings.memory_limit_bytes
    yield _judged(
        "memory",
        f"{memory / 2**30:.0f} GiB; each job may use {job_bytes / 2**30:g} GiB",
        memory >= settings.jobs * job_bytes,
        "lower memory_limit_gib or jobs in compilewatch.toml",
    )


def _inputs(settings: Settings) -> Iterator[DoctorCheck]:
    """The input of a sweep: targets, models, overrides and expectations."""

    def targets() -> str:
        check_targets(targets_of(settings.targets, settings.modes, settings.chosen_dynamic))
        return f"{', '.join(settings.targets)} in {', '.join(settings.modes)}"

    def models() -> str:
        source = ManifestSource(Places(settings=settings))
        if not source.path.exists():
            return "no models of your own"
        specs = source.models()
        if wrong := [model for model in specs if model.error is not None]:
            raise ConfigError(f"{len(wrong)} of {len(specs)} models: {wrong[0].error}")
        return f"{source.path}, {plural(len(specs), 'model')} of your own"

    def overrides() -> str:
        folder = Path(settings.overrides_dir)
        own = folder if folder.is_dir() else None
        return f"{plural(len(read_overrides(own)), 'line')}, {_shipped_and(own)}"

    def expectations() -> str:
        path = Path(settings.expectations_file)
        lines = load_expectations(path).expectation
        return f"{plural(len(lines), 'line')}, {_shipped_and(path if path.exists() else None)}"

    advice = "correct the file or the setting that the message names"
    for read in (targets, models, overrides, expectations):
        try:
            yield _judged(read.__name__, read())
        except CompilewatchError as error:
            yield _judged(read.__name__, str(error), False, advice, otherwise="failed")


def _shipped_and(own: Path | None) -> str:
    return "as shipped" if own is None else f"as shipped and in {own}"


def _environments(settings: Settings, fresh: bool) -> Iterator[DoctorCheck]:
    """Each environment, what is wrong with its packages for Neuron, and what Neuron gives here."""
    here, facts = installed.machine(), {"nothing": "no environment for it"}
    for listed in interpreters.listing(Environments(settings.cache_folder), fresh=fresh):
        known = listed.environment
        if listed.name not in INTERPRETERS:  # `_interpreter` reports that
            fact = f"torch {known.torch}" if known else listed.state.replace("_", " ")
            yield _judged(f"env {listed.name}", fact, known is not None, listed.advice)
        if known is None:
            continue
        ability = installed.ability(known.packages, here)
        if problem := installed.problem(known.packages, known.placeholders, here):
            yield _judged(f"neuron in {known.name}", problem, False)
        if not problem or ability == "forecast":
            names = ("torch-neuronx", "torch-mlir", "neuronx-cc")
            versions = (f"{n} {known.packages[n]}" for n in names if n in known.packages)
            facts.setdefault(ability, f"environment {known.name} has {', '.join(versions)}")
    best = next(ability for ability in installed.ABILITIES if ability in facts)
    advice = installed.better(best, here)
    yield _judged("neuron", f"{best}: {facts[best]}; {here}", not advice, advice)


def _outputs(settings: Settings) -> DoctorCheck:
    folder = Path(settings.output_dir).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        advice = "choose another folder with --output"
        return _judged("outputs", f"{existing} is not writable", False, advice, otherwise="failed")
    free = shutil.disk_usage(existing).free
    return _judged(
        "outputs",
        f"{folder}, {free / 2**30:.0f} GiB free",
        free > 2**30,
        "free some space: a run of the complete library with traces takes up to 1 GiB",
    )


def _tools() -> Iterator[DoctorCheck]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    pillow = "installed" if importlib.util.find_spec("PIL") is not None else None
    tlparse, install = "pip install tlparse", "install g++ (Debian: apt-get install g++)"
    unsupported = "models whose code imports PIL are unsupported: pip install pillow"
    for name, there, lacking, advice in (
        ("tlparse", program("tlparse"), "found: traces are kept but not rendered", tlparse),
        ("c++ compiler", compiler, "found: Inductor needs one, Dynamo does not", install),
        ("PIL", pillow, "installed", unsupported),
    ):
        yield _judged(name, there or f"not {lacking}", bool(there), advice)


def _hub(settings: Settings) -> Iterator[DoctorCheck]:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    has_token = bool(os.environ.get("HF_TOKEN"))
    token = "is set" if has_token else "is not set (only gated models need it)"
    yield _judged("hub", f"{endpoint}; HF_TOKEN {token}")
    pulled = sorted(Path(settings.pulled_dir).glob("*"))
    yield _judged(
        "pulled list",
        str(pulled[-1]) if pulled else "none: sweeps use the installed Transformers",
        bool(pulled),
        "compilewatch pull --top 50",
    )


@click.command("doctor")
@options.as_json
@options.fresh
def doctor_command(as_json: bool, fresh: bool) -> int:
    """Show what this machine can run, what is missing, and which command installs it.

    A worker is started and compiles a small model, as in a sweep. The result is kept until the
    environment changes.

    Exit status 2 if a sweep cannot run.
    """
    settings = load_settings()
    checks = [
        *_interpreter(fresh),
        *_inputs(settings),
        *_environments(settings, fresh),
        *_machine(settings),
        _outputs(settings),
        *_tools(),
        plugins.load("compilewatch.extras.executor.cli:sandbox_check")(),
        *_hub(settings),
    ]
    if as_json:
        options.print_json(checks)
    else:
        width = max(len(check.name) for check in checks) + 2
        for check in checks:
            colour = {"ok": "green", "note": "yellow", "failed": "red"}[check.state]
            mark = click.style(f"{check.state:8}", fg=colour)
            click.echo(f"{mark}{check.name:{width}}{check.fact}")
            if check.advice:
                click.echo(f"{'':{8 + width}}{check.advice}")
    return 2 if any(check.state == "failed" for check in checks) else 0


STEPS = ("Creating", "Collecting", "Downloading", "Building", "Installing", "Successfully")
"""The beginnings of those lines of pip's output that are worth showing."""


@click.group("env")
def env_command() -> None:
    """Create, list, check and delete environments: Python interpreters, each with its own torch.

    Workers run in them. They are stored in the user's cache folder and shared by all checkouts.
    `default` is the interpreter that runs compilewatch.
    """


@env_command.command("create")
@click.argument("name")
@click.option(
    "--torch", metavar="VERSION", help="The version of torch in an environment with another name."
)
@click.option("--transformers", metavar="VERSION", help="The version of Transformers, likewise.")
@click.option(
    "--with",
    "further",
    metavar="A,B",
    help="Packages that models need besides, such as timm,torchvision, in the releases that fit.",
)
@click.option("--python", metavar="PATH", help="The interpreter to create it with.")
def create_verb(
    name: str,
    torch: str | None,
    transformers: str | None,
    further: str | None,
    python: str | None,
) -> None:
    """Create the environment NAME: xla, lowering, neuron, neuron-xla, cuda, vision, libraries, or
    any other name with --torch, --transformers or --with.

    `lowering` forecasts what TorchNeuron compiles, on any machine. `neuron` uses the TorchNeuron of
    AWS's machine images where they have it, or installs it on Ubuntu 26.04, where AWS documents
    that. `neuron-xla` is for Trn1 and Inf2. `vision` has the torch and Transformers of compilewatch
    itself, and timm and torchvision for the models that need them. `libraries` has diffusers,
    sentence-transformers and open_clip besides.

    Without --torch or --transformers, that package has the version of compilewatch itself.
    Packages that another environment has in the same version take no further space. This is
    fast if the environment exists already. TORCH_INDEX names a package index with CPU builds of
    torch, from which torch is installed, but for cuda: that has a CUDA build, which is used
    where this interpreter has a CPU build and a model is trained on a CUDA device.
    """
    recipe = recipe_of(name, torch, transformers, choose.split(further) or ())
    environments = _all_environments()

    def show(line: str) -> None:
        if line.lstrip().startswith(STEPS):
            click.echo(click.style(line.strip()[:200], dim=True), err=True)

    environment, anew = create(environments, name, recipe, python=python, observer=show)
    versions = f"torch {environment.torch}, transformers {environment.transformers or 'none'}"
    click.echo(f"{name} is ready: {versions}, {environment.python_executable}")
    if anew:
        click.echo(f"Check it with: compilewatch env check {name}")


@env_command.command("list")
@options.as_json
def list_verb(as_json: bool) -> None:
    """List the environments that exist and those that targets need."""
    environments = interpreters.listing(_all_environments())
    lines = []
    for listed in environments:
        facts = (listed.advice, "", "")
        if (described := listed.environment) is not None:
            facts = (described.torch, described.transformers or "none", described.python_executable)
        lines.append((listed.name, listed.state.replace("_", " "), *facts))
    titles = ("Name", "State", "torch", "transformers", "Python")
    options.show(environments, as_json, table(titles, lines))


@env_command.command("describe")
@click.argument("name")
@options.as_json
def describe_verb(name: str, as_json: bool) -> None:
    """Show the versions and the size of the environment NAME, without starting a worker.

    Files that several environments share take their space once.
    """
    environments = _all_environments()
    environment = environments.describe(name)
    if as_json:
        options.print_json(environment)
        return
    packages = table(("Package", "Version"), environment.packages.items(), gap=2)
    lines = [
        f"{name}: torch {environment.torch} (git {environment.torch_git[:10]}), "
        f"transformers {environment.transformers or 'none'}, Python {environment.python}, "
        f"device {environment.device}",
        environment.python_executable,
        installed.problem(environment.packages, environment.placeholders, installed.machine()),
    ]
    if name not in INTERPRETERS:
        own, shared = (size / 2**20 for size in sizes_of(environments, name))
        lines.append(f"{own:,.0f} MiB of its own, {shared:,.0f} MiB shared with others")
    console().print(spaced([plain("\n".join(filter(None, lines))), packages]))


@env_command.command("remove")
@click.argument("name")
def remove_verb(name: str) -> None:
    """Delete the created environment NAME. What it shares with others stays with them."""
    remove(_all_environments(), name)
    click.echo(f"{name} is deleted")


@env_command.command("check")
@click.argument("name")
@options.as_json
def check_verb(name: str, as_json: bool) -> int:
    """Start a worker in the environment NAME, as a sweep does, and compile a small model.

    If that fails, the exit status is 1, and the message says what is wrong and how to fix it.
    """
    environments = _all_environments()
    facts: dict[str, Any] = {"problem": "", "advice": "", "environment": None, "working": None}
    try:
        environments.interpreter(name)
        facts["advice"] = "make setup" if name in INTERPRETERS else create_command(name)
        environment = environments.describe(name, fresh=True)
        measured = choose.try_environment(environments, name)
    except InterpreterError as error:
        facts["problem"] = str(error)
    else:
        facts |= {"advice": "", "environment": environment, "working": measured}
    works = not facts["problem"]
    if as_json:
        options.print_json({"name": name, "works": works, **facts})
    elif not works:
        click.echo("; ".join(filter(None, (facts["problem"], facts["advice"]))), err=True)
    else:
        click.echo(
            f"{name} works: torch {environment.torch} (git {environment.torch_git[:10]}), "
            f"transformers {environment.transformers or 'none'}, worker ready after "
            f"{measured.start_seconds:.1f} s, compiled in {measured.request_seconds:.1f} s"
        )
        if measured.threads > 1:
            click.echo(f"note: {cannot_fork(name, measured.threads)}", err=True)
    return 0 if works else 1


def _all_environments() -> Environments:
    return Environments(load_settings().cache_folder)


def _listed_targets(settings: Settings, *, fresh: bool = False) -> Iterator[dict[str, Any]]:
    """Every target in the environment that a sweep would use, and why it cannot run there.

    Each environment is checked once, or its stored facts are used. `dynamo/cuda` is the target for
    a CUDA device, which the machine need not have, and `dynamo/neuron` that for a Neuron device.
    """
    environments = Environments(settings.cache_folder)
    known: list[Environment] = []
    ready: dict[str, Readiness] = {}
    broken: dict[str, str] = {}
    for name in choose.environments_for(TARGETS, settings):
        try:
            known.append(environments.describe(name, fresh=fresh))
            ready[name] = choose.readiness(environments, name, fresh=fresh)
        except InterpreterError as error:
            broken[name] = f"{error}; see: compilewatch env check {name}"
    named = [name for name in settings.environments if name not in broken]
    targets = [Target(name=name) for name in TARGETS]
    devices = [
        Target(name=name, device=kind)
        for kind in device_kinds()
        for name, row in TARGETS.items()
        if row.captures_for_devices
    ]
    for target in place([*targets, *devices], named, known):
        name = target.environment
        why: str | None = broken.get(name) or needs(target)
        if name in ready:
            why = ready[name].missing.get(target.name)
            why = why or ready[name].no_devices.get(target.device)
        label = target.name if target.device == CPU else f"{target.name}/{target.device}"
        yield {"target": label, "environment": name, "runs": not why, "why": why or ""}


@click.command("list-targets")
@click.option(
    "--environments",
    metavar="A,B",
    help="Check these environments (default: the default of each target).",
)
@options.fresh
@options.as_json
def list_targets_command(environments: str | None, fresh: bool, as_json: bool) -> None:
    """List the compile targets, the environment of each, and whether it can run here."""
    settings = load_settings({"environments": choose.split(environments)})
    targets = list(_listed_targets(settings, fresh=fresh))
    lines = [
        (t["target"], t["environment"], "yes" if t["runs"] else "no", t["why"]) for t in targets
    ]
    titles = ("Target", "Environment", "Runs here", "Reason")
    options.show(targets, as_json, table(titles, lines))


def _listed_sources(settings: Settings) -> Iterator[dict[str, Any]]:
    """Every source, libraries first, with the number of models that these settings select.

    A library has its package and environment. `why` says why a source has no models here. No model
    is built or evaluated.
    """
    libraries = {row.source: row for row in LIBRARIES.values()}
    places = Places(settings=settings)
    for name in dict.fromkeys((*libraries, *source_names())):
        listed: dict[str, Any] = {"source": name, "package": "", "version": "", "environment": ""}
        listed |= {"models": None, "why": ""}
        try:
            if (row := libraries.get(name)) is not None:
                listed |= {"package": row.distribution, "environment": row.environments[0]}
                library = PackageSource(row.name, places)
                listed["environment"], listed["version"] = library.installed()
            listed["models"] = len(make_source(name, places).models())
        except CompilewatchError as error:
            listed["why"] = str(error)
        yield listed


@click.command("list-sources")
@options.as_json
def list_sources_command(as_json: bool) -> None:
    """List the sources of models, the environment of each library, and what is missing here."""
    sources = list(_listed_sources(load_settings()))
    lines = [
        ["" if v is None else f"{v:,}" if isinstance(v, int) else v for v in source.values()]
        for source in sources
    ]
    titles = ("Source", "Package", "Version", "Environment", "Models", "Missing")
    options.show(sources, as_json, table(titles, lines))


@click.command("pull")
@click.option("--top", default=50, show_default=True, type=click.IntRange(min=1))
@click.option("--sort", type=click.Choice(list(SORTS)), default="downloads", show_default=True)
@click.option("--task", help="Only models of this pipeline tag, such as text-generation.")
@click.option("--family", help="Only models of this type, such as llama.")
@click.option("--library", help="Only models of this library, such as transformers.")
@options.as_json
def pull_command(
    top: int, sort: str, task: str | None, family: str | None, library: str | None, as_json: bool
) -> int:
    """Fetch the list of the Hub's most used models and pin their revisions and configurations.

    Only configuration files are fetched, never weights. HF_ENDPOINT and HF_TOKEN are respected. The
    exit status is 3 if the Hub failed before the end; the models fetched until then are kept.
    """
    from compilewatch.sources.hub.pull import pull  # of an extra

    settings = load_settings()
    stderr = Console(stderr=True, highlight=False)
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=as_json) as bar:
        task_id = bar.add_task("listing models", total=top)

        def progress(done: int, total: int) -> None:
            bar.update(task_id, completed=done, total=total, description="pulling")

        def notice(line: str) -> None:
            bar.update(task_id, description="retrying")
            if not as_json:
                stderr.print(line, markup=False)

        query = PulledQuery(top=top, sort=sort, task=task, family=family, library=library)
        report = pull(query, Places(settings=settings).pulled, progress=progress, notice=notice)
    options.show(report, as_json, lambda: _print_report(report))
    return 3 if report.partial else 0


def _print_report(report: PullReport) -> None:
    models = plural(report.models, "model")
    click.echo(f"{models}, {report.configs:,} with a configuration: {report.path}")
    for reason, count in sorted(report.problems.items(), key=lambda kv: -kv[1]):
        click.echo(f"  {count} skipped: {reason}")
    if report.partial:
        click.echo(f"Incomplete: {report.message}", err=True)
        if report.kept:
            kept = plural(report.kept, "model")
            click.echo(f"Kept from the earlier list: {kept}.", err=True)
    else:
        click.echo("Check them with: compilewatch sweep")
