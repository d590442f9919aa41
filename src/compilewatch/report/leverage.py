"""What is worth fixing first, and what is verified of it, in words."""

from __future__ import annotations

from compilewatch.analysis.leverage import By, Leverage, LeverageStep
from compilewatch.analysis.verified_fixes import StepFix, VerifiedTotal
from compilewatch.report.wording import plural, quantity


def leverage_headline(found: Leverage) -> str:
    """`13 models have graph breaks on dynamo, 3.4 M downloads a month`."""
    if not found.broken:
        return "No model has a graph break: there is nothing to fix."
    verb = "has" if found.broken == 1 else "have"
    said = f"{plural(found.broken, 'model')} {verb} graph breaks on {', '.join(found.targets)}"
    if found.downloads is None:
        return said
    return f"{said}, {quantity(found.downloads)} downloads a month"


def gain(fix: LeverageStep) -> str:
    """`12` where the step gives them by itself, `+4` where it needs the steps before it."""
    return f"{len(fix.models):,}" if fix.exact else f"+{len(fix.models):,}"


def leverage_notes(found: Leverage) -> tuple[str, ...]:
    """What the columns of the table of fixes mean, and what the table leaves out."""
    unit = "function" if found.by is By.LINE else "reason"
    notes = [
        "Models: have no graph break any more after this step; with +, only together with the "
        "steps above.",
        f"At most: models that break in this {unit} at all, and would need other fixes too.",
    ]
    if found.unknown:
        notes.append(
            f"{plural(found.unknown, 'model')} cannot be ranked, because not all causes of their "
            "breaks are known."
        )
    if rest := found.left - found.unknown:
        notes.append(f"{plural(rest, 'model')} would need steps that are not listed.")
    return tuple(notes)


def step_fix_words(found: StepFix | None) -> str:
    """`capture_scalar_outputs=True (12 of 41 models)`; a dash where nothing is verified."""
    if found is None:
        return "–"
    changes = " and ".join(found.changes)
    return f"{changes} ({found.verified:,} of {plural(found.affected, 'model')})"


def verified_total_words(found: VerifiedTotal) -> str:
    """What the verified fixes of a run are worth together, in two sentences."""
    if not found.models:
        said = "No fix of a single graph is verified for any of these models."
    else:
        these = "this change leaves" if len(found.changes) == 1 else "these changes leave"
        these = these.replace("these", f"these {len(found.changes):,}")
        gained = f"{plural(len(found.models), 'more model')} without graph breaks"
        if found.downloads is not None:
            gained += f", {quantity(found.downloads)} downloads a month"
        said = f"Verified: {these} {gained}; each of them is verified by a script of its own."
    if found.improved:
        verb = "has" if found.improved == 1 else "have"
        said += f" {plural(found.improved, 'model')} {verb} a verification of fewer graph breaks."
    return said
