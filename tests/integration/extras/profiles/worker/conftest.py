"""Subjects of a profile in this process, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from compilewatch.extras.profiles.worker.subject import Inductor
from tests.integration.worker.targets.conftest import MakeSubject
from tests.integration.worker.targets.conftest import make_subject as make_subject

MakeInductor = Callable[[Callable[[], nn.Module]], Inductor]


@pytest.fixture
def make_inductor(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeInductor]:
    """A compiled model that has been called. Its graphs call torch's kernels: no C++ compiler."""
    from torch._inductor import config

    monkeypatch.setattr("compilewatch.worker.targets.inductor.prepare_tool_chain", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(build: Callable[[], nn.Module]) -> Inductor:
        subject = make_subject(build)
        made = Inductor(subject)
        made.first_call()
        made.call()
        return made

    with config.patch(fallback_by_default=True):
        yield make
    torch.set_num_threads(threads)
    torch._dynamo.reset()
