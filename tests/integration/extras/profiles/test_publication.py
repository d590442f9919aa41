"""Profiles that were made on their own, in a real Pushgateway."""

from pathlib import Path

import msgspec
import pytest

from compilewatch.extras.profiles.metrics import push_profile
from compilewatch.sinks.pushgateway import Gateway
from tests import example_run, profiled, services
from tests.integration.sinks.test_pushgateway import held, push, settings


@pytest.mark.services
def test_a_model_that_was_profiled_on_its_own_has_a_group_of_its_own(tmp_path: Path) -> None:
    with services.pushgateway(tmp_path) as own:
        run = example_run.view(*example_run.row())
        push(run, own.url)
        before = held(own)
        profile, _ = profiled.profile()
        for model in ("A", "B"):
            named = msgspec.structs.replace(profile, model=model, family="bert")
            said = push_profile(Gateway(settings(own.url)), named)
            assert said.startswith("pushgateway: ")
        after = held(own)
        assert before.items() <= after.items()
        latencies = [
            dict(labels)
            for (name, labels) in after
            if name == "compilewatch_latency_seconds" and ("source", "profile") in labels
        ]
        assert {one["model"] for one in latencies} == {"A", "B"}
        assert {one["batch_size"] for one in latencies} == {"1", "4", "8"}
