"""The list of environments: those there are, and those that would help here."""

from pathlib import Path

import pytest

from compilewatch.environments import Environments, listing
from tests import factories


@pytest.mark.parametrize(("cuda", "offered"), [("13.2", False), (None, True)])
def test_the_cuda_build_is_offered_beside_a_cpu_build_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, offered: bool
) -> None:
    made = factories.environment(cuda=cuda)
    monkeypatch.setattr(Environments, "describe", lambda *_, **__: made)
    listed = {each.name: each.advice for each in listing(Environments(tmp_path))}
    assert ("cuda" in listed) == offered
    assert listed["xla"] == "compilewatch env create xla"
