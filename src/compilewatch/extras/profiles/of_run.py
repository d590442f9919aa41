"""Inference profiles of a sweep: of the most used models that compiled, in the run's folder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilewatch.environments import Environments
from compilewatch.errors import LauncherError
from compilewatch.extras.profiles import records
from compilewatch.extras.profiles.analysis import compare_profiles
from compilewatch.extras.profiles.measurement import Inference, profile_model
from compilewatch.extras.profiles.report import PAGE
from compilewatch.extras.profiles.store import PREFIX, ProfileFolder, StoredProfile, read_profiles
from compilewatch.extras.profiles.subjects import Profilers
from compilewatch.files import safe_name
from compilewatch.launchers import Observer
from compilewatch.records import Depth, Link, Mode, Request, Result, Status, Tier
from compilewatch.store import StoredRun

OPTIONS = records.InferenceOptions(
    targets=(records.EAGER, "inductor"),
    batch_sizes=(1, 8),
    max_length=32,
    size="reduced",
    runs=5,
    max_seconds=8.0,
)
"""A nightly job profiles many models, so each takes about a minute, at reduced size."""

FOLDER = "profiles"
COMPILED = frozenset({Status.PASS, Status.GRAPH_BREAK})


def to_profile(results: Iterable[Result], most: int) -> list[Request]:
    """The requests of the most used models that compiled, in eval mode, each model once."""
    requests: dict[str, Request] = {}
    for result in results:
        request = result.request
        if result.status in COMPILED and request.target.mode is Mode.EVAL:
            requests.setdefault(request.model.name, request)
    ranked = sorted(requests.values(), key=lambda r: -(r.model.downloads or 0))
    return [
        msgspec.structs.replace(request, tier=Tier.REAL, depth=Depth.REDUCED)
        for request in ranked[:most]
    ]


def profile_run(
    root: Path,
    run_id: str,
    results: Iterable[Result],
    most: int,
    observer: Observer,
    environments: Environments,
) -> tuple[str, ...]:
    """Profile models of a run whose folder is `root`; return notes on what was not profiled.

    Models that a resumed run has profiled already are left out. A worker server that ends only
    costs the profiles: the results of the run are stored and count.
    """
    done = {stored.profile.model for stored in read_profiles(root)[0]}
    requests = [r for r in to_profile(results, most) if r.model.name not in done]
    if not requests:
        return ()
    count = 0
    try:
        with Profilers(OPTIONS.targets, environments) as profilers:
            for count, request in enumerate(requests):
                name = request.model.name
                folder = ProfileFolder(root, f"{FOLDER}/{safe_name(name)}")
                observer.on_step(f"{name} ({count + 1} of {len(requests)})", 0.0)
                inference = Inference(request, OPTIONS, profilers, folder, lambda *_: None)
                profile_model(inference, f"{PREFIX}{run_id}")
    except LauncherError as error:
        left = len(requests) - count
        return (f"{left} of {len(requests)} models were not profiled: {error}",)
    return ()


@dataclass(frozen=True, kw_only=True)
class RunProfiles:
    """The inference profiles of a run, and how they differ from those of the baseline."""

    profiles: tuple[records.InferenceProfile, ...]
    changes: tuple[records.ProfileComparison, ...] = ()

    def links(self, model: str) -> Iterator[Link]:
        """Yield a link to the profile of a model, if it has one."""
        for profile in self.profiles:
            if profile.model == model:
                yield Link(
                    f"{profile.place}/{PAGE}",
                    "Open the inference profile",
                    "Latency, throughput and memory by batch size, and what each graph break "
                    "costs.",
                )


def view_of_run(stored: StoredRun, baseline: StoredRun | None) -> tuple[RunProfiles, Sequence[str]]:
    """The profiles of a run, and notes on damaged lines and on what became slower."""
    known, damaged = read_profiles(stored.path)
    olds = read_profiles(baseline.path)[0] if known and baseline is not None else ()
    changes = compared_with(known, olds)
    profiles = tuple(profile.profile for profile in known)
    return RunProfiles(profiles=profiles, changes=changes), [*damaged, *slower_notes(changes)]


def compared_with(
    new: Iterable[StoredProfile], old: Iterable[StoredProfile]
) -> tuple[records.ProfileComparison, ...]:
    """Compare the profiles of a run with those of its baseline, model by model."""
    olds, news = ({stored.profile.model: stored for stored in side} for side in (old, new))
    return tuple(
        compare_profiles(olds[name].measured(), news[name].measured())
        for name in sorted(news.keys() & olds.keys())
    )


def slower_notes(compared: Sequence[records.ProfileComparison]) -> Iterator[str]:
    """One line for each model that is slower than in the baseline, beyond noise."""
    for comparison in compared:
        if points := comparison.of(records.Verdict.SLOWER):
            changes = ", ".join(
                f"{p.target} at batch {p.batch_size} {(p.judgement.ratio or 1) - 1:+.0%}"
                for p in points
            )
            also = f" ({'; '.join(comparison.differences)})" if comparison.differences else ""
            yield f"{comparison.model} is slower than in the baseline: {changes}{also}"
