"""Sweeps without processes, for the tests of pipeline, publishing and merging."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import records
from compilewatch.api.sweep import sweep_models
from compilewatch.config import Settings, load_settings
from compilewatch.launchers import Launcher
from compilewatch.store import RunWriter, Store
from tests import factories
from tests.fake_launcher import FakeLauncher, passing

SHARED = records.ConfigBuild(config_file="/c", config_sha256="shared", class_name="BertModel")

MODELS: tuple[records.ModelSpec, ...] = (
    factories.spec("A"),
    factories.spec("org/one", build=SHARED),
    factories.spec("B"),
    factories.spec("org/two", build=SHARED),
    factories.spec("org/gated", skip_reason="gated: ask for access"),
    factories.spec("C"),
)
"""Six models, of which two ask one question and one is not asked."""

ASKED = ["A", "org/one", "B", "C"]


def settings(tmp_path: Path, **changes: Any) -> Settings:
    given = {"output_dir": str(tmp_path / "outputs"), "sinks": [], "inputs": str(tmp_path / "in")}
    return load_settings({**given, **changes}, folder=tmp_path, environ={})


def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "outputs")


def run_sweep(tmp_path: Path, launcher: Launcher | None = None, **given: Any) -> records.RunView:
    changes = given.pop("settings", {})
    return sweep_models(
        store(tmp_path),
        launcher or FakeLauncher(),
        given.pop("specs", MODELS),
        given.pop("targets", [records.Target()]),
        settings(tmp_path, **changes),
        source=given.pop("source", "library"),
        **given,
    )


def begin(store: Store, **fields: Any) -> RunWriter:
    """A run that is being written."""
    run = factories.run("", **{**fields, "state": "running"})
    return store.create_run(run, records.Plan(requests=(), skipped=(), digest="plan"))


def stored_run(
    store: Store, *results: records.Result, state: str = "finished", **fields: Any
) -> str:
    """The id of a new run with these results."""
    with begin(store, **{"planned": len(results), **fields}) as writer:
        writer.append(results)
        writer.finish(state)
        return writer.run.id


def breaking(
    breaks: dict[str, Sequence[records.GraphBreak]],
) -> Callable[[records.Request], records.Result]:
    """Answers: these models break so, all others pass."""

    def answer(request: records.Request) -> records.Result:
        found = tuple(breaks.get(request.model.name, ()))
        if not found:
            return passing(request)
        return msgspec.structs.replace(factories.result(breaks=found), request=request)

    return answer


def names(results: Sequence[records.Result]) -> list[str]:
    return [result.request.model.name for result in results]


def seen(launcher: FakeLauncher) -> list[str]:
    return [request.model.name for request in launcher.seen]


def events(view: records.RunView, tmp_path: Path) -> list[dict[str, Any]]:
    """The log of a run, in order."""
    path = tmp_path / "outputs" / view.run.id / "logs" / f"{view.run.id}.jsonl"
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
