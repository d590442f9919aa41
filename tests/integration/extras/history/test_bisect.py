"""Searches and attributions with a real store, and doubles of environments and launchers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from compilewatch.api.publish import view
from compilewatch.config import Settings
from compilewatch.errors import InterpreterError, UnknownModelError
from compilewatch.extras.history.attribute import Attribution, ChangeCause, Side, attribute_changes
from compilewatch.extras.history.bisect import Bisection, Evaluated, Evaluator, Kind, bisect
from compilewatch.launchers import Launcher
from compilewatch.records import Environment, ModelSpec, Phase, Request, Result, Status, Target
from compilewatch.store import Store
from tests import factories, sweeping
from tests.fake_launcher import FakeLauncher, passing

Answer = Callable[[str, Request], Result]
"""A result from the releases of torch and Transformers, as `torch/transformers`."""

RELEASES = ("5.1.0", "5.2.0", "5.3.0", "5.4.0", "5.5.0", "5.6.0", "5.7.0")


def launcher(environment: Environment, answers: Callable[[Request], Result]) -> FakeLauncher:
    """One of an environment with chosen releases."""
    made = FakeLauncher(environments=(environment.name,), answers=answers)
    made.environments = lambda: (environment,)  # type: ignore[method-assign]
    return made


class World:
    """Environments that need not be created, and what models do in them."""

    def __init__(
        self, folder: Path, answer: Answer, lacking: Sequence[str] = (), broken: Sequence[str] = ()
    ) -> None:
        self.folder, self.answer, self.lacking, self.broken = folder, answer, lacking, broken
        self.evaluated: list[tuple[str, str]] = []

    def prepare(self, torch: str, transformers: str) -> Environment:
        if transformers in self.broken:
            raise InterpreterError(f"no environment with transformers {transformers}")
        return factories.environment(
            name=f"{torch}-{transformers}", torch=torch, transformers=transformers, packages={}
        )

    def choose(self, name: str, environment: str) -> ModelSpec:
        if environment.rpartition("-")[2] in self.lacking:
            raise UnknownModelError(f"no model {name!r}", name)
        return factories.spec(name)

    def launch(self, settings: Settings, names: Sequence[str]) -> AbstractContextManager[Launcher]:
        (name,) = names
        torch, _, transformers = name.partition("-")

        def answer(request: Request) -> Result:
            self.evaluated.append((request.model.name, name))
            return self.answer(f"{torch}/{transformers}", request)

        return nullcontext(launcher(self.prepare(torch, transformers), answer))

    def store(self) -> Store:
        return sweeping.store(self.folder)

    def evaluator(self) -> Evaluator:
        settings, selection = sweeping.settings(self.folder), {"bisect": "transformers"}
        return Evaluator(settings=settings, launch=self.launch, selection=selection)

    def search(self) -> tuple[Bisection, list[Evaluated]]:
        seen: list[Evaluated] = []
        found = bisect(
            "A",
            Target(),
            "transformers",
            "2.15.0",
            RELEASES,
            self.evaluator(),
            choose=self.choose,
            prepare=self.prepare,
            report=lambda one, number, limit: seen.append(one),
        )
        return found, seen

    def attribute(
        self, ends: tuple[tuple[str, str], tuple[str, str]], limit: int = 9
    ) -> Attribution:
        """The change between a run of each of two ends, in environments of one name."""
        store = self.store()
        runs = []
        for torch, transformers in ends:
            environment = factories.environment(
                name="default", torch=f"{torch}+cpu", transformers=transformers, packages={}
            )

            def answer(request: Request, versions: str = f"{torch}/{transformers}") -> Result:
                return self.answer(versions, request)

            own = launcher(environment, answer)
            run = sweeping.run_sweep(self.folder, own, specs=sweeping.MODELS[:1]).run
            runs.append(store.open(run.id))
        base, stored = runs
        (found,) = attribute_changes(
            Side.of(base.run, base.results()),
            Side.of(stored.run, stored.results()),
            view(store, stored, baseline=base).changes,
            self.evaluator(),
            self.prepare,
            limit=limit,
            by_place=False,
            report=lambda *_: None,
        )
        return found


def breaking_from(release: str) -> Answer:
    def answer(versions: str, request: Request) -> Result:
        return passing(request) if versions.partition("/")[2] < release else broken(request)

    return answer


def broken(request: Request) -> Result:
    return factories.result(request=request, breaks=(factories.graph_break(),))


def test_the_release_is_found_and_each_result_is_stored_once(tmp_path: Path) -> None:
    latest = sweeping.run_sweep(tmp_path).run.id
    world = World(tmp_path, breaking_from("5.4.0"))
    found, seen = world.search()
    assert (found.pair, found.between) == (("5.3.0", "5.4.0"), ())
    assert len(world.evaluated) == len(seen) <= 7
    assert len(world.store().runs()) == len(seen) + 1
    assert world.store().latest_id() == latest  # that people look at
    again, seen = world.search()
    assert again.pair == ("5.3.0", "5.4.0")
    assert len(world.evaluated) == len(seen)  # nothing ran again
    assert all(one.reused for one in seen)


def test_an_interrupted_search_evaluates_only_what_is_left(tmp_path: Path) -> None:
    steady = breaking_from("5.4.0")

    def interrupted(versions: str, request: Request) -> Result:
        if versions.endswith("5.4.0"):
            raise KeyboardInterrupt
        return steady(versions, request)

    world = World(tmp_path, interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.search()
    before = len(world.evaluated)
    world.answer = steady
    found, seen = world.search()
    assert found.pair is not None
    assert found.pair[1] == "5.4.0"
    assert [one.release for one in seen if one.reused] == ["5.1.0", "5.7.0"]
    assert len(world.evaluated) == before + len(seen) - 2


def test_releases_that_lack_the_model_or_have_no_environment(tmp_path: Path) -> None:
    world = World(tmp_path, breaking_from("5.9"), lacking=("5.1.0", "5.2.0"), broken=("5.4.0",))
    found, seen = world.search()
    assert found.pair == ("5.2.0", "5.3.0")
    kinds = {one.release: one.kind for one in seen}
    assert kinds["5.1.0"] is Kind.ABSENT
    assert kinds["5.4.0"] is Kind.UNDETERMINED
    assert ("A", "2.15.0-5.1.0") not in world.evaluated


ENDS = ("2.13.0", "5.5.4"), ("2.15.0", "5.6.0")


def test_only_the_missing_corners_are_evaluated(tmp_path: Path) -> None:
    world = World(tmp_path / "1", lambda v, r: broken(r) if v.startswith("2.15.0") else passing(r))
    found = world.attribute(ENDS)
    assert found.cause is ChangeCause.TORCH
    assert sorted(world.evaluated) == [("A", "2.13.0-5.6.0"), ("A", "2.15.0-5.5.4")]
    assert world.attribute(ENDS) == found
    assert len(world.evaluated) == 2
    world = World(tmp_path / "2", breaking_from("5.6.0"))  # one package that differs
    found = world.attribute((ENDS[0], ("2.13.0", "5.6.0")))
    assert found.cause is ChangeCause.TRANSFORMERS
    assert world.evaluated == []


def test_a_corner_without_a_verdict_or_environment_is_not_determined(tmp_path: Path) -> None:
    def answer(versions: str, request: Request) -> Result:
        if versions == "2.15.0/5.5.4":
            return factories.result(request=request, status=Status.TIMEOUT, phase=Phase.COMPILE)
        return breaking_from("5.6.0")(versions, request)

    for world, limit, why in (
        (World(tmp_path / "1", answer), 9, "timeout in compile"),
        (World(tmp_path / "2", answer, broken=("5.5.4",)), 9, "no environment with transformers"),
        (World(tmp_path / "3", answer), 0, "--limit"),
    ):
        found = world.attribute(ENDS, limit)
        assert found.cause is ChangeCause.NOT_DETERMINED
        assert why in found.detail


def test_ends_of_another_compilewatch_are_evaluated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the two runs found differs, and today both ends pass: compilewatch has changed."""
    world = World(tmp_path, breaking_from("5.6.0"))
    monkeypatch.setattr("compilewatch.api.sweep._target_digests", lambda _: {"dynamo": "earlier"})

    def passes(versions: str, request: Request) -> Result:
        again = bool(world.evaluated)
        return passing(request) if again else breaking_from("5.6.0")(versions, request)

    world.answer = passes
    assert world.attribute(ENDS).cause is ChangeCause.HARNESS
    assert len(world.evaluated) == 4
