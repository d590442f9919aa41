"""What of a run is profiled, what belongs to a profile's key, and profiles of merged runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from compilewatch.extras.profiles.infer.measurement import Job, busy_note, suggested_settings
from compilewatch.extras.profiles.infer.profiles_of_run import (
    compared_with,
    slower_notes,
    to_profile,
)
from compilewatch.extras.profiles.infer.records import InferenceOptions
from compilewatch.extras.profiles.infer.store import ProfileFolder, adopt_profiles, read_profiles
from compilewatch.records import Mode, Status, Target, Tier
from tests import factories, profiled

OPTIONS = InferenceOptions()


def test_the_most_used_models_that_compiled_are_profiled_once() -> None:
    results = [
        factories.result("Rare", downloads=1),
        factories.result("Common", downloads=100),
        factories.result("Common", downloads=100, target=Target(name="inductor")),
        factories.result("Broken", downloads=1000, status=Status.ERROR),
        factories.result("Trained", downloads=1000, target=Target(mode=Mode.TRAIN)),
        factories.result("Cut", downloads=50, status=Status.GRAPH_BREAK),
    ]
    found = to_profile(results, 2)
    assert [request.model.name for request in found] == ["Common", "Cut"]
    assert {request.tier for request in found} == {Tier.REAL}


def test_the_machine_and_the_options_are_in_the_key_and_the_software_is_not() -> None:
    request = factories.result("A").request
    job = Job(request=request, options=OPTIONS)
    key = job.key(profiled.MACHINE)
    newer = msgspec.structs.replace(request, key="of another torch")
    assert Job(request=newer, options=OPTIONS).key(profiled.MACHINE) == key
    other = msgspec.structs.replace(profiled.MACHINE, cpu="Another CPU")
    assert job.key(other) != key
    threads = msgspec.structs.replace(OPTIONS, threads=2)
    assert Job(request=request, options=threads).key(profiled.MACHINE) != key
    model = factories.result("B").request
    assert Job(request=model, options=OPTIONS).key(profiled.MACHINE) != key


def test_settings_are_those_that_torch_suggests() -> None:
    text = "set torch._dynamo.config.capture_dynamic_output_shape_ops = True"
    other = msgspec.structs.replace(profiled.COST, reason=text)
    assert suggested_settings([profiled.COST, other, profiled.COST]) == [
        "capture_scalar_outputs",
        "capture_dynamic_output_shape_ops",
    ]
    assert suggested_settings([msgspec.structs.replace(profiled.COST, reason="none")]) == []


def test_only_a_busy_machine_gets_a_note() -> None:
    assert busy_note(profiled.MACHINE, 0.4) is None
    assert busy_note(profiled.MACHINE, None) is None
    assert "load of 5.0 on 2 cores" in str(busy_note(profiled.MACHINE, 5.0))


def stored(root: Path, factor: float = 1.0, seed: int = 0) -> None:
    made, samples = profiled.profile(factor, seed=seed)
    folder = ProfileFolder(root, "profiles/net")
    folder.write({"raw_values.json": msgspec.json.encode(samples), "report.html": b"page"})
    folder.finish(msgspec.structs.replace(made, place="profiles/net"))
    folder.close()


def test_a_merged_run_has_the_profiles_of_its_parts_once(tmp_path: Path) -> None:
    stored(tmp_path / "part")
    merged = tmp_path / "merged"
    merged.mkdir()
    adopt_profiles(tmp_path / "part", merged)
    adopt_profiles(tmp_path / "part", merged)
    (found,), damaged = read_profiles(merged)
    assert damaged == ()
    assert (found.folder / "report.html").read_bytes() == b"page"
    assert len(found.samples()) == 6


def test_a_run_says_which_models_are_slower(tmp_path: Path) -> None:
    from compilewatch.store import StoredRun

    stored(tmp_path / "old")
    stored(tmp_path / "new", 1.3, seed=1)
    old, new = StoredRun(tmp_path / "old"), StoredRun(tmp_path / "new")
    (note,) = slower_notes(compared_with(new, old))
    assert "is slower than in the baseline: inductor at batch 1 +" in note
    assert slower_notes(compared_with(old, old)) == []
    assert compared_with(new, None) == ()
