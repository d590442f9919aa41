from __future__ import annotations

import msgspec
import pytest

from compilewatch.analysis.leverage import By
from compilewatch.analysis.predictions import check, without_breaks_once
from compilewatch.records import Status, Target
from tests.factories import graph_break, result

SHARED = graph_break("helper", file="transformers/utils/import_utils.py", line=7)
BRANCH = graph_break("forward", "GB0059")
LOOP = graph_break("loop", "GB0059")
SILENT = graph_break("?", None, code="unattributed")


@pytest.mark.parametrize(
    ("by", "gone"), [(By.LINE, LOOP.fingerprint), (By.ID, "GB0059 Type GB0059")]
)
def test_what_has_no_breaks_once_causes_are_fixed(by: By, gone: str) -> None:
    seen = [result("A", breaks=(LOOP,)), result("B", breaks=(LOOP, BRANCH)), result("C")]
    found = without_breaks_once(seen, {gone}, by)
    assert found == (("A",) if by is By.LINE else ("A", "B"))


def test_a_prediction_is_held_against_a_later_run() -> None:
    other = Target(environment="nightly")
    before = [
        result("Right", breaks=(SHARED,)),
        result("Wrong", breaks=(SHARED,)),
        result("Missed", breaks=(BRANCH,)),
        result("Still", breaks=(SHARED, BRANCH)),
        result("Unheard", breaks=(SHARED,)),
        result("Fine"),
    ]
    after = [
        result("Right", target=other),
        result("Wrong", breaks=(LOOP,), target=other),
        result("Missed", target=other),
        result("Still", breaks=(BRANCH,), target=other),
        result("Unheard", status=Status.TIMEOUT, target=other),
        result("Fine", target=other),
    ]
    held = check(before, after, By.LINE)
    assert (held.models, held.broken, held.causes, held.gone) == (5, 4, 2, 1)
    assert (held.fixed, held.right, held.wrong) == (("Missed", "Right"), ("Right",), ("Wrong",))
    assert held.precision == 1 / 2
    # BRANCH is gone from one model only, which is therefore rid of all that it had.
    assert (held.rid, held.revealed, held.rid_share) == (3, ("Wrong",), 1 - 1 / 3)
    nothing = check(before, before, By.ID)
    assert (nothing.gone, nothing.precision, nothing.rid_share) == (0, None, None)


def test_a_model_whose_causes_are_not_all_known_is_not_expected_to_pass() -> None:
    probed = msgspec.structs.replace(result("Probed", breaks=(SHARED,)), probed=True)
    before = [probed, result("Silent", breaks=(SILENT, SHARED)), result("Known", breaks=(SHARED,))]
    after = [result("Probed", breaks=(LOOP,)), result("Silent", breaks=(LOOP,)), result("Known")]
    held = check(before, after, By.LINE)
    assert (held.broken, held.rid, held.revealed) == (3, 1, ())
    assert (held.right, held.wrong) == (("Known",), ())


def test_results_of_two_devices_are_not_held_against_each_other() -> None:
    on_cpu = result("A", breaks=(SHARED,))
    on_cuda = result("A", target=Target(device="cuda"))
    assert check([on_cpu], [on_cuda], By.LINE).models == 0


@pytest.mark.parametrize("by", list(By))
def test_a_reason_under_a_new_name_is_not_fixed(by: By) -> None:
    renamed = graph_break("forward", "GB9493")
    held = check([result("A", breaks=(BRANCH,))], [result("A", breaks=(renamed,))], by)
    assert (held.gone, held.wrong) == (0, ())
