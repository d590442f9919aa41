"""What the fixture `compile_check` gives to a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import pytest

from compilewatch.api.check import CheckResult, check
from compilewatch.errors import CompilewatchError
from compilewatch.extras.gate.baseline import load
from compilewatch.extras.gate.judgement import Judgement, judge
from compilewatch.extras.gate.messages import failure
from compilewatch.extras.gate.plugin import PROPERTY
from compilewatch.extras.gate.settings import RULES, baseline_path, project_settings, rules_of


class CompileCheck:
    """Checks models in one test; a call fails the test as the rules say."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node = request.node
        self._config = request.config
        self._checks: list[dict[str, Any]] = []

    def __call__(
        self,
        model: Callable[..., Any],
        *args: Any,
        calls: Iterable[Any] | None = None,
        mode: str = "eval",
        backend: str = "eager",
        dynamic: bool | None = None,
        own: str | Iterable[str] | None = None,
        third_party: str | None = None,
        recompilations: int | None = None,
        captured_share: float | None = None,
        fullgraph: bool | None = None,
        **kwargs: Any,
    ) -> CheckResult:
        """Check a model as `compilewatch.check` does, and fail for what the rules do not accept.

        `own` names packages whose breaks count like those of the repository; `third_party="fail"`
        also fails for breaks elsewhere. `recompilations` is how many are accepted,
        `captured_share` the smallest share of operators in graphs (0 to 1), and `fullgraph=True`
        wants `torch.compile(fullgraph=True)` to accept the model. A keyword wins over the marker
        `compilewatch`, and that over `[tool.compilewatch]` of pyproject.toml.
        """
        given = dict(
            zip(RULES, (own, third_party, recompilations, captured_share, fullgraph), strict=True)
        )
        root = self._config.rootpath
        try:
            settings = project_settings(root)
            marker = self._node.get_closest_marker("compilewatch")
            rules = rules_of(root, settings, marker.kwargs if marker else {}, given)
            path = baseline_path(root, settings, self._config.getoption("--compilewatch-baseline"))
            known = load(path)
            found = check(
                model, *args, calls=calls, mode=mode, backend=backend, dynamic=dynamic, **kwargs
            )
        except CompilewatchError as error:
            pytest.fail(f"compilewatch: {error}", pytrace=False)
        judgement = judge(found, known, rules)
        self._keep(judgement)
        accepted = self._config.getoption("--compilewatch-update") and not judgement.problems
        if judgement.failed and not accepted:
            verbose = self._config.getoption("verbose") > 0
            said = failure(judgement, known, self._node.nodeid, verbose=verbose)
            pytest.fail(said, pytrace=False)
        return found

    def _keep(self, judgement: Judgement) -> None:
        """Add what was met to the test's properties, from which the session collects it."""
        self._checks.append(
            {
                "own": [asdict(each) for each in judgement.own],
                "new": len(judgement.new),
                "third_party": sorted({f"{b.file}:{b.function}" for b in judgement.third_party}),
                "recompilations": judgement.recompilations,
            }
        )
        properties = self._node.user_properties
        properties[:] = [pair for pair in properties if pair[0] != PROPERTY]
        properties.append((PROPERTY, json.dumps(self._checks)))
