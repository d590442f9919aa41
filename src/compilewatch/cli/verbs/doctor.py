"""`compilewatch doctor`: what this machine can run, what is missing, and how to install it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from packaging.version import Version

from compilewatch import extras, plugins
from compilewatch.api.worker_client import working
from compilewatch.cli import options
from compilewatch.config import Settings, load_settings
from compilewatch.data import read_overrides
from compilewatch.environments import INTERPRETERS, Environments, listing
from compilewatch.errors import CompilewatchError, ConfigError
from compilewatch.launchers.local.launcher import cannot_fork
from compilewatch.plan import check_targets, load_expectations, targets_of
from compilewatch.records import DEFAULT_ENVIRONMENT, Record
from compilewatch.report.wording import plural
from compilewatch.sources.own import ManifestSource

OPTIONAL_PACKAGES = {
    "PIL": "models whose code imports PIL are unsupported: pip install pillow",
}


ONLINE_SECONDS = 30.0
"""How long the package index may take to respond."""


class DoctorCheck(Record, frozen=True, kw_only=True):
    """One line of output. `state` is ok, note (optional) or failed (a sweep cannot run)."""

    name: str
    state: str
    fact: str
    advice: str = ""


def _interpreter(fresh: bool) -> Iterator[DoctorCheck]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield DoctorCheck(name="python", state="ok", fact=f"{version} at {sys.executable}")
    try:
        default = Environments().describe("default", fresh=fresh)
    except CompilewatchError as error:
        yield DoctorCheck(name="torch", state="failed", fact=str(error), advice="pip install torch")
        return
    yield DoctorCheck(
        name="torch",
        state="ok",
        fact=f"{default.torch} (git {default.torch_git[:10]}), device {default.device}",
    )
    yield DoctorCheck(
        name="transformers",
        state="ok" if default.transformers else "note",
        fact=default.transformers or "not installed: models of your own can be checked",
        advice="" if default.transformers else extras.install("transformers"),
    )
    yield _worker(fresh=fresh)


def _worker(*, fresh: bool = False) -> DoctorCheck:
    """Whether the first step of a sweep works: a worker starts and compiles a model."""
    try:
        measured, checked_at = working(Environments(), DEFAULT_ENVIRONMENT, fresh=fresh)
    except CompilewatchError as error:
        return DoctorCheck(
            name="worker",
            state="failed",
            fact=str(error),
            advice="`make clean setup` installs torch and transformers again; if that does not "
            "help, report this line with the output of: compilewatch env check default --json",
        )
    forks = measured.threads == 1
    return DoctorCheck(
        name="worker",
        state="ok" if forks else "note",
        fact=f"ready after {measured.start_seconds:.1f} s, compiled a small model within "
        f"{measured.request_seconds:.1f} s; checked at {checked_at[:19].replace('T', ' ')} UTC",
        advice="" if forks else cannot_fork(DEFAULT_ENVIRONMENT, measured.threads),
    )


def _releases() -> Iterator[DoctorCheck]:
    """Whether the package index has a newer torch or transformers than this environment."""
    try:
        here = Environments().describe(DEFAULT_ENVIRONMENT).packages
    except CompilewatchError:
        return  # `_interpreter` reports it
    for package in ("torch", "transformers"):
        newest, installed = _newest(package), here.get(package)
        if installed is None:
            continue
        if newest is None:
            yield DoctorCheck(
                name=f"{package} release",
                state="note",
                fact="unknown: the package index does not respond",
                advice="check the network, and the index in the configuration of pip",
            )
            continue
        behind = Version(newest) > Version(installed)
        yield DoctorCheck(
            name=f"{package} release",
            state="note" if behind else "ok",
            fact=f"{newest}; {installed} is installed" if behind else newest,
            advice="`make lock` updates torch and transformers to the newest pair that works"
            if behind
            else "",
        )


def _newest(package: str) -> str | None:
    """The newest release of a package on pip's index, or None if the index does not respond."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    try:
        listed = subprocess.run(
            [*command, "--disable-pip-version-check", "--retries", "0", "--timeout", "10"],
            capture_output=True,
            text=True,
            check=False,
            timeout=ONLINE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = listed.stdout.partition("\n")[0]  # torch (2.15.0)
    return first.rpartition("(")[2].rstrip(")") if listed.returncode == 0 else None


def _machine(settings: Settings) -> Iterator[DoctorCheck]:
    cores = os.cpu_count() or 1
    yield DoctorCheck(
        name="cores", state="ok", fact=f"{cores}; a sweep runs {plural(settings.jobs, 'job')}"
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = settings.jobs * settings.memory_limit_bytes
    yield DoctorCheck(
        name="memory",
        state="ok" if memory >= needed else "note",
        fact=f"{memory / 2**30:.0f} GiB; "
        f"each job may use {settings.memory_limit_bytes / 2**30:g} GiB",
        advice="" if memory >= needed else "lower memory_limit_gib or jobs in compilewatch.toml",
    )


def _inputs(settings: Settings) -> Iterator[DoctorCheck]:
    """The input of a sweep: targets, models, overrides and expectations."""

    def targets() -> str:
        check_targets(targets_of(settings.targets, settings.modes, settings.chosen_dynamic))
        return f"{', '.join(settings.targets)} in {', '.join(settings.modes)}"

    def models() -> str:
        path = Path(settings.models_file)
        if not path.exists():
            return "no models of your own"
        specs = ManifestSource(path=path).models()
        if wrong := [model for model in specs if model.error is not None]:
            raise ConfigError(f"{len(wrong)} of {len(specs)} models: {wrong[0].error}")
        return f"{path}, {plural(len(specs), 'model')} of your own"

    def overrides() -> str:
        folder = Path(settings.overrides_dir)
        own = folder if folder.is_dir() else None
        return f"{plural(len(read_overrides(own)), 'line')}, {_shipped_and(own)}"

    def expectations() -> str:
        path = Path(settings.expectations_file)
        lines = load_expectations(path).expectation
        return f"{plural(len(lines), 'line')}, {_shipped_and(path if path.exists() else None)}"

    for read in (targets, models, overrides, expectations):
        try:
            yield DoctorCheck(name=read.__name__, state="ok", fact=read())
        except CompilewatchError as error:
            yield DoctorCheck(
                name=read.__name__,
                state="failed",
                fact=str(error),
                advice="correct the file or the setting that the message names",
            )


def _shipped_and(own: Path | None) -> str:
    return "as shipped" if own is None else f"as shipped and in {own}"


def _environments(settings: Settings, fresh: bool) -> Iterator[DoctorCheck]:
    for listed in listing(Environments(settings.cache_folder), fresh=fresh):
        if listed.name in INTERPRETERS:
            continue  # `_interpreter` reports it
        environment = listed.environment
        yield DoctorCheck(
            name=f"env {listed.name}",
            state="ok" if environment is not None else "note",
            fact=f"torch {environment.torch}"
            if environment is not None
            else listed.state.replace("_", " "),
            advice=listed.advice,
        )


def _outputs(settings: Settings) -> DoctorCheck:
    folder = Path(settings.output_dir).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return DoctorCheck(
            name="outputs",
            state="failed",
            fact=f"{existing} is not writable",
            advice="choose another folder with --output",
        )
    free = shutil.disk_usage(existing).free
    enough = free > 2**30
    return DoctorCheck(
        name="outputs",
        state="ok" if enough else "note",
        fact=f"{folder}, {free / 2**30:.0f} GiB free",
        advice=""
        if enough
        else "free some space: a run of the complete library with traces takes up to 1 GiB",
    )


def _tools() -> Iterator[DoctorCheck]:
    beside = Path(sys.executable).with_name("tlparse")
    tlparse = str(beside) if beside.exists() else shutil.which("tlparse")
    yield DoctorCheck(
        name="tlparse",
        state="ok" if tlparse else "note",
        fact=tlparse or "not found: traces are kept but not rendered",
        advice="" if tlparse else "pip install tlparse",
    )
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    yield DoctorCheck(
        name="c++ compiler",
        state="ok" if compiler else "note",
        fact=compiler or "not found: Inductor needs one, Dynamo does not",
        advice="" if compiler else "install g++ (Debian: apt-get install g++)",
    )
    for package, consequence in OPTIONAL_PACKAGES.items():
        present = importlib.util.find_spec(package) is not None
        yield DoctorCheck(
            name=package,
            state="ok" if present else "note",
            fact="installed" if present else "not installed",
            advice="" if present else consequence,
        )


def _hub(settings: Settings) -> Iterator[DoctorCheck]:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    token = (
        "HF_TOKEN is set"
        if os.environ.get("HF_TOKEN")
        else "HF_TOKEN is not set (only gated models need it)"
    )
    yield DoctorCheck(name="hub", state="ok", fact=f"{endpoint}; {token}")
    pulled = (
        sorted(Path(settings.pulled_dir).glob("*")) if Path(settings.pulled_dir).is_dir() else []
    )
    yield DoctorCheck(
        name="pulled list",
        state="ok" if pulled else "note",
        fact=str(pulled[-1]) if pulled else "none: sweeps use the installed Transformers",
        advice="" if pulled else "compilewatch pull --top 50",
    )


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as one JSON list.")
@click.option("--online", is_flag=True, help="Also check the package index for newer releases.")
@options.fresh
def command(as_json: bool, online: bool, fresh: bool) -> int:
    """Show what this machine can run, what is missing, and which command installs it.

    A worker is started and compiles a small model, as in a sweep. The result is kept until the
    environment changes.

    Exit status 2 if a sweep cannot run.
    """
    settings = load_settings()
    checks = [
        *_interpreter(fresh),
        *(_releases() if online else ()),
        *_inputs(settings),
        *_environments(settings, fresh),
        *_machine(settings),
        _outputs(settings),
        *_tools(),
        *(plugins.load(reference)() for reference in extras.providers("doctor")),
        *_hub(settings),
    ]
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(checks))
    else:
        width = max(len(check.name) for check in checks) + 2
        for check in checks:
            colour = {"ok": "green", "note": "yellow", "failed": "red"}[check.state]
            mark = click.style(f"{check.state:8}", fg=colour)
            click.echo(f"{mark}{check.name:{width}}{check.fact}")
            if check.advice:
                click.echo(f"{'':{8 + width}}{check.advice}")
    return 2 if any(check.state == "failed" for check in checks) else 0
