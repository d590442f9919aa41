"""The known breaks in an older torch: the same verdicts, causes and lines as in the default one."""

import msgspec
import pytest
from breaks import CASES, Case, line_of
from evaluated import request_of

from compilewatch.config import load_settings
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Result

# cli/test_env.py finds a break in an older torch as well.
pytestmark = [pytest.mark.torch, pytest.mark.torch_2_13, pytest.mark.matrix]

ENVIRONMENT = "torch-2.13"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """All cases asked in one worker; only that torch itself shows what it reports."""
    requests = (request_of(case.name, environment=ENVIRONMENT) for case in CASES)
    asked = [msgspec.structs.replace(each, keep_artifacts=False) for each in requests]
    cache = load_settings().cache_folder
    with LocalLauncher(2, (ENVIRONMENT,), cache=cache) as launcher:
        (environment,) = launcher.environments()
        assert environment.torch.startswith("2.13.0")
        done = launcher.run(asked, tmp_path_factory.mktemp("scratch"))
        return {each.result.request.key: each.result for each in done}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_break_is_found_with_its_cause_and_line(
    case: Case, results: dict[str, Result]
) -> None:
    result = results[case.name]
    assert (result.error, result.graphs, result.unattributed) == (None, case.graphs, 0)
    assert [(each.code, each.line, each.function, each.occurrences) for each in result.breaks] == [
        (known.code, line_of(known.mark), known.function, known.occurrences)
        for known in case.breaks
    ]
    assert (result.fullgraph.accepted, result.fullgraph.code) == (case.fullgraph, case.refusal)


def test_operators_are_counted_inside_and_outside_of_graphs(results: dict[str, Result]) -> None:
    explicit, disabled = (results[name].capture for name in ("explicit", "calls_disabled"))
    assert (explicit.operators_captured, explicit.operators_eager) == (2, 0)
    assert disabled.eager_operators == {"aten.mul.Tensor": 1}
