"""What a profile measures once: generation, what settings remove, and a classifier's scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from compilewatch.analysis import scores
from compilewatch.extras.profiles.infer import messages as orders
from compilewatch.extras.profiles.infer import statistics
from compilewatch.extras.profiles.infer.records import (
    EAGER,
    BreakCost,
    SettingFix,
    TextGeneration,
    Verdict,
    eager_of,
    target_kind,
)
from compilewatch.extras.profiles.infer.server_client import SubjectError
from compilewatch.records.accuracy import Accuracy
from compilewatch.sources.labelled import LabelledTexts

if TYPE_CHECKING:
    from compilewatch.extras.profiles.infer.measurement import Inference
    from compilewatch.extras.profiles.infer.parts import RunningSubject
    from compilewatch.extras.profiles.infer.subjects import Subjects

NEW_TOKENS = 16
TEXTS = 10
"""Texts that are generated: each is one sample of prefill and one of decode."""

CLASSIFIER_BATCH = 16
CHUNK = 8 * CLASSIFIER_BATCH
"""Texts that are classified between two steps of the progress."""

_SETTING = re.compile(r"\bcapture_(?:scalar_outputs|dynamic_output_shape_ops)\b")
"""Settings of `torch._dynamo.config` that torch itself suggests in the reason of a break."""


def generation(each: RunningSubject, deadline_seconds: float) -> TextGeneration:
    """Time the prompt and the tokens after it. Raises SubjectError."""
    order = orders.Generate(
        subject=each.number, deadline_seconds=deadline_seconds, tokens=NEW_TOKENS, runs=TEXTS
    )
    found = each.ask(order, orders.Generated)
    # Each text is a round: prompt and tokens take turns.
    prefill = statistics.timing(_rounds(found.prefill_wall_seconds), [found.prefill_cpu_seconds])
    decode = statistics.timing(_rounds(found.decode_wall_seconds), [found.decode_cpu_seconds])
    size = each.point.batch_size
    return TextGeneration(
        batch_size=size,
        prompt_tokens=found.prompt_tokens,
        new_tokens=NEW_TOKENS,
        prefill=prefill,
        decode=decode,
        prefill_tokens_per_second=size * found.prompt_tokens / prefill.median_seconds,
        decode_tokens_per_second=size / decode.median_seconds,
    )


def suggested(breaks: Sequence[BreakCost]) -> list[str]:
    """The settings that torch suggests against these breaks."""
    return list(dict.fromkeys(s for cost in breaks for s in _SETTING.findall(cost.reason)))


def setting_fixes(profile: Inference, base: RunningSubject) -> Iterator[SettingFix]:
    """Compile once more with each suggested setting, and measure it in turns with the base."""
    for setting in suggested(base.point.breaks):
        profile.subjects.step(f"what {setting} saves")
        changed = profile.subjects.start(base.target, base.point.batch_size, {setting: True})
        try:
            yield _measured(profile.subjects, base, changed, setting)
        finally:
            profile.subjects.end(changed)


def _measured(
    subjects: Subjects, base: RunningSubject, changed: RunningSubject, setting: str
) -> SettingFix:
    before = base.point
    found = SettingFix(
        setting=setting,
        breaks_before=before.graph_breaks or 0,
        breaks_after=changed.point.graph_breaks or 0,
        graphs_before=before.graphs or 0,
        graphs_after=changed.point.graphs or 0,
    )
    if not changed.alive:
        return msgspec.structs.replace(found, detail=changed.point.detail)
    # The base was measured before; a fair comparison needs new rounds of both, in turns.
    kept = len(base.wall)
    subjects.rounds(base.point.batch_size, [base, changed], 0.0)
    try:
        order = orders.Compare(subject=changed.number, deadline_seconds=subjects.deadline)
        matches = changed.ask(order, orders.Compared).numerics.matches
        segment = orders.TimedSegment(
            subject=changed.number, deadline_seconds=subjects.deadline, calls=1
        )
        left = {b.fingerprint for b in changed.ask(segment, orders.Segmented).breaks}
    except SubjectError as error:
        return msgspec.structs.replace(found, detail=error.failure.detail)
    own, other = base.wall[kept:], changed.wall
    del base.wall[kept:], base.cpu[kept:]
    judged = statistics.in_turns(own, other)
    if judged.ratio is None or before.latency is None:
        return msgspec.structs.replace(found, detail=judged.reason)
    seconds = statistics.timing(own, []).median_seconds
    return msgspec.structs.replace(
        found,
        removed=tuple(c.fingerprint for c in before.breaks if c.fingerprint not in left),
        saving_seconds=seconds * (1 - judged.ratio),
        saving_low_seconds=seconds * (1 - (judged.ratio_high or judged.ratio)),
        saving_high_seconds=seconds * (1 - (judged.ratio_low or judged.ratio)),
        certain=judged.verdict is Verdict.FASTER,
        matches=matches,
        detail=judged.reason,
    )


def evaluate(profile: Inference, data: LabelledTexts) -> Iterator[tuple[str, Accuracy]]:
    """Classify the complete file on eager mode and on Inductor, and score both."""
    predicted: dict[str, list[int]] = {}
    targets = [t for t in profile.options.targets if target_kind(t) in (EAGER, "inductor")]
    for target in targets:
        subject = profile.subjects.start(target, CLASSIFIER_BATCH, texts=data.texts)
        try:
            if not subject.alive or subject.prepared is None:
                profile.notes.append(f"{target} was not scored: {subject.point.detail}")
                continue
            truth = data.classes(subject.prepared.labels)
            classes, seconds = _classified(profile, subject, len(data.texts))
        except SubjectError as error:
            profile.notes.append(f"{target} was not scored: {error.failure.detail}")
            continue
        finally:
            profile.subjects.end(subject)
        predicted[target] = classes
        known = eager_of(target, predicted)
        eager = predicted[known] if known not in (None, target) else None
        yield target, scores.accuracy_of(truth, classes, eager=eager, seconds=seconds)


def _classified(profile: Inference, subject: RunningSubject, count: int) -> tuple[list[int], float]:
    classes: list[int] = []
    seconds = 0.0
    for start in range(0, count, CHUNK):
        profile.subjects.done = start / count
        profile.subjects.step(f"{subject.target} classifies {data_words(start, count)}")
        order = orders.Classify(
            subject=subject.number,
            deadline_seconds=profile.subjects.deadline,
            start=start,
            stop=min(start + CHUNK, count),
        )
        found = subject.ask(order, orders.Classified)
        classes += found.classes
        seconds += found.seconds
    return classes, seconds


def data_words(done: int, count: int) -> str:
    return f"{done:,} of {count:,} texts"


def _rounds(values: Sequence[float]) -> list[tuple[float]]:
    return [(value,) for value in values]
