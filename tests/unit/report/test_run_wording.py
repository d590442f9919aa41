from __future__ import annotations

from typing import Any

from compilewatch.records import Part, Result, Status
from compilewatch.report import wording
from tests import factories


def test_skipped_parts_of_repositories_are_named() -> None:
    def part(name: str, **fields: Any) -> Result:
        return factories.result(
            f"org/pipe#{name}", source="hub", checkpoint="org/pipe", part=Part.COMPONENT, **fields
        )

    seen = factories.view(part("unet"), part("safety_checker", status=Status.SKIPPED))
    assert wording.repository_words(seen) == (
        "repositories: 1 of 1 with a verdict on each evaluated part, 1 of them with skipped parts "
        "(component 1 of 1)"
    )
    remote = factories.result(
        "org/code", source="hub", checkpoint="org/code", status=Status.SKIPPED
    )
    assert wording.repository_words(factories.view(remote)) == (
        "repositories: 0 of 1 with a verdict on each evaluated part (nothing can be built 0 of 1)"
    )
    assert wording.repository_words(factories.view(factories.result())) == ""
