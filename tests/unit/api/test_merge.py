from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.analysis.summary import overhead, reused_share, summarise
from compilewatch.api.publish import view
from compilewatch.api.sweep import merge
from compilewatch.errors import UsageError
from compilewatch.records import Plan, Request, Result, RunView, Shard, Status
from tests import factories
from tests.fake_launcher import FakeLauncher, passing
from tests.sweeping import begin, events, names, run_sweep, settings, store

SPECS = [factories.spec(f"M{number}") for number in range(30)]
WHOLE = sorted(spec.name for spec in SPECS)


def _shard(place: Path, index: int, count: int = 3, **given: Any) -> RunView:
    given.setdefault("specs", SPECS)
    return run_sweep(place, shard=Shard(index=index, count=count), fresh=True, **given)


def _merge(tmp_path: Path, *views: RunView) -> RunView:
    stored = [store(tmp_path).open(v.run.id) for v in views]
    return merge(store(tmp_path), stored, settings(tmp_path))


def test_shards_become_the_run_of_their_plan(tmp_path: Path) -> None:
    shards = [_shard(tmp_path, index) for index in (1, 2, 3)]
    merged = _merge(tmp_path, *shards[::-1])
    assert sorted(names(merged.results)) == WHOLE
    assert merged.run.planned == 30
    assert merged.run.merged_from == tuple(s.run.id for s in shards)
    assert merged.run.plan_digest == run_sweep(tmp_path, specs=SPECS).run.plan_digest
    assert (merged.run.shard, merged.run.state, merged.notes) == (None, "finished", ())
    assert merged.run.settings == shards[0].run.settings
    assert store(tmp_path).open().run.id != merged.run.id
    log = [line["event"] for line in events(merged, tmp_path)]
    assert (log[0], log[-1], log.count("model_checked")) == ("run_started", "run_finished", 30)


def test_shards_of_other_machines_bring_their_artifacts(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    shards = [
        _shard(place, index, 2, launcher=FakeLauncher(artifacts={"t.log": place.name.encode()}))
        for index, place in ((1, here), (2, there))
    ]
    parts = [
        store(here).open(place / "outputs" / shard.run.id)
        for place, shard in zip((here, there), shards, strict=True)
    ]
    merged = merge(store(here), parts, settings(here))
    path = store(here).open(merged.run.id).path
    found = {(path / name).read_text() for r in merged.results for name in r.artifacts}
    assert found == {"here", "there"}
    assert sorted(names(merged.results)) == WHOLE


@pytest.mark.parametrize(("count", "given", "missing"), [(4, (1, 3), "2/4, 4/4"), (2, (1,), "2/2")])
def test_missing_shards_are_named_now_and_later(
    tmp_path: Path, count: int, given: tuple[int, ...], missing: str
) -> None:
    shards = [_shard(tmp_path, index, count) for index in given]
    merged = _merge(tmp_path, *shards)
    assert merged.run.merged_from == tuple(shard.run.id for shard in shards)
    assert (merged.run.state, merged.run.planned) == ("incomplete", len(SPECS))
    assert summarise(merged).coverage == len(merged.results) / len(SPECS)
    expected = (
        f"this run is incomplete: merge it again with the missing shards {missing}",
        f"the run is incomplete: {len(merged.results)} of 30 planned requests have a result",
    )
    assert merged.notes == expected
    assert view(store(tmp_path), store(tmp_path).open(merged.run.id)).notes == expected
    with pytest.raises(UsageError, match="is merged: merge its parts again"):
        store(tmp_path).resume_run(store(tmp_path).open(merged.run.id))


def test_the_newest_result_wins_but_what_was_not_run_is_none(tmp_path: Path) -> None:
    def at(time: str, status: Status) -> FakeLauncher:
        def answer(request: Request) -> Result:
            done = factories.result(status=status, started_at=time)
            return msgspec.structs.replace(done, request=request)

        return FakeLauncher(answers=answer)

    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    old = run_sweep(tmp_path, at(late, Status.TIMEOUT), specs=SPECS[:1])
    new = run_sweep(tmp_path, at(early, Status.PASS), specs=SPECS[:1], fresh=True)
    merged = _merge(tmp_path, new, old)
    assert [r.status for r in merged.results] == [Status.TIMEOUT]

    with begin(store(tmp_path), plan_digest=old.run.plan_digest) as writer:
        (result,) = old.results
        writer.append([msgspec.structs.replace(result, status=Status.SKIPPED, started_at="9")])
        writer.finish("finished")
    merged = _merge(tmp_path, old, RunView(run=writer.run, results=()))
    assert [r.status for r in merged.results] == [Status.TIMEOUT]


def test_figures_of_a_merged_run_are_those_of_its_parts(tmp_path: Path) -> None:
    def timed(request: Request) -> Result:
        return msgspec.structs.replace(passing(request), durations={"compile": 1.0})

    shards = [
        _shard(tmp_path, i, 2, launcher=FakeLauncher(answers=timed), settings={"jobs": i})
        for i in (1, 2)
    ]
    merged = _merge(tmp_path, *shards)
    seconds = sum((s.run.wall_seconds or 0) * s.run.jobs for s in shards)
    assert overhead(merged) == pytest.approx(seconds / 30)
    assert merged.run.jobs == 3
    assert reused_share(merged) == 0


def test_what_does_not_belong_together_is_rejected(tmp_path: Path) -> None:
    one = _shard(tmp_path, 1, 2)
    other_plan = _shard(tmp_path, 2, 2, specs=SPECS[:20])
    with pytest.raises(UsageError, match="are of different plans"):
        _merge(tmp_path, one, other_plan)
    with pytest.raises(UsageError, match=r"different counts: .* of 2, .* of 3"):
        _merge(tmp_path, one, _shard(tmp_path, 2, 3))
    with pytest.raises(UsageError, match="no runs to merge"):
        _merge(tmp_path)
    before = len(store(tmp_path).runs())
    with store(tmp_path).create_run(
        msgspec.structs.replace(one.run, state="running"), Plan(requests=(), skipped=(), digest="")
    ) as writer:
        going = RunView(run=writer.run, results=())
        with pytest.raises(UsageError, match="still being written"):
            _merge(tmp_path, one, going)
    assert len(store(tmp_path).runs()) == before + 1


def test_a_shard_that_was_ended_early_is_missing_in_part(tmp_path: Path) -> None:
    whole, early = _shard(tmp_path, 1, 2), _shard(tmp_path, 2, 2)
    path = store(tmp_path).root / early.run.id / "run.json"
    path.write_text(path.read_text().replace('"finished"', '"interrupted"'))
    results = path.with_name("results.jsonl")
    results.write_bytes(b"damaged\n" + results.read_bytes().split(b"\n", 1)[1])
    notes = _merge(tmp_path, whole, early).notes
    missing = "merge it again with the missing shards 2/2 (in part)"
    assert f"this run is incomplete: {missing}" in notes
    assert any(f"{results}:1" in note for note in notes)
    complete = _merge(tmp_path, whole, _shard(tmp_path, 2, 2))
    assert complete.notes == ()
    after = _merge(tmp_path, whole, _shard(tmp_path, 2, 2))
    assert after.baseline == complete.run, "not one that lacks shards"


def test_a_baseline_that_does_not_exist_is_rejected_before_anything_is_written(
    tmp_path: Path,
) -> None:
    shard = _shard(tmp_path, 1, 2)
    given = settings(tmp_path, baseline="20200101-000000-0000")
    with pytest.raises(UsageError, match="no run '20200101"):
        merge(store(tmp_path), [store(tmp_path).open(shard.run.id)], given)
    assert len(store(tmp_path).runs()) == 1
