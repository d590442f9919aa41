"""Decoding of the replies of a model. A reply that is not complete and valid is a finding."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from compilewatch.extras.papers.operations import OPERATIONS
from compilewatch.extras.papers.records import (
    Binding,
    Claim,
    FindingClass,
    ModelCall,
    PaperFinding,
    PaperPlan,
    PipelineStage,
    Review,
)
from compilewatch.extras.papers.text import without_binary

_Kind = TypeVar("_Kind")

COMPLETE = frozenset({"end_turn", "stop_sequence"})

STOP_REASONS: dict[str, FindingClass] = {
    "max_tokens": FindingClass.TRUNCATED,
    "model_context_window_exceeded": FindingClass.TRUNCATED,
    "guardrail_intervened": FindingClass.GUARDRAIL,
    "content_filtered": FindingClass.GUARDRAIL,
    "refusal": FindingClass.DECLINED,
}
"""Bedrock's reasons for an incomplete reply; all others are `malformed`."""


class InvalidReplyError(Exception):
    """The reply cannot be used; `finding` says why."""

    def __init__(self, finding: PaperFinding) -> None:
        super().__init__(finding.evidence)
        self.finding = finding


class _BoundInput(msgspec.Struct, frozen=True):
    symbol: str
    shape: tuple[int, ...]


class _BoundAttribute(msgspec.Struct, frozen=True):
    symbol: str
    attribute: str


class _Bound(msgspec.Struct, frozen=True):
    claim: str
    module: str
    inputs: tuple[_BoundInput, ...] = ()
    attributes: tuple[_BoundAttribute, ...] = ()


class _Code(msgspec.Struct, frozen=True):
    source: str
    bindings: tuple[_Bound, ...] = ()
    declined: str = ""


class Code(msgspec.Struct, frozen=True):
    """A module and its bindings, as a model returned them."""

    source: str
    bindings: tuple[Binding, ...]


def plan_of(call: ModelCall) -> PaperPlan:
    """Raises InvalidReplyError, also for a plan without claims to check."""
    plan = _decoded(call, PaperPlan, PipelineStage.PLAN)
    known = [_known(claim) for claim in plan.claims]
    kept = tuple(claim for claim in known if claim.operations)
    if not kept:
        raise _invalid(PipelineStage.PLAN, FindingClass.MALFORMED, "the plan has no claim to check")
    ids = [claim.id for claim in kept]
    if len(set(ids)) < len(ids):
        raise _invalid(
            PipelineStage.PLAN, FindingClass.MALFORMED, "two claims of the plan have one id"
        )
    return msgspec.structs.replace(plan, claims=kept)


def code_of(call: ModelCall) -> Code:
    """Raises InvalidReplyError for a truncated, declined or empty reply."""
    reply = _decoded(call, _Code, PipelineStage.GENERATE)
    if reply.declined.strip() and not reply.source.strip():
        said = f"the model declines: {' '.join(reply.declined.split())[:300]}"
        raise _invalid(PipelineStage.GENERATE, FindingClass.DECLINED, said)
    if not reply.source.strip():
        raise _invalid(PipelineStage.GENERATE, FindingClass.MALFORMED, "the reply contains no code")
    bindings = tuple(
        Binding(
            claim=each.claim,
            module=each.module,
            inputs={i.symbol: i.shape for i in each.inputs},
            attributes={a.symbol: a.attribute for a in each.attributes},
        )
        for each in reply.bindings
    )
    return Code(source=without_binary(reply.source).rstrip() + "\n", bindings=bindings)


def review_of(call: ModelCall) -> Review:
    """Raises InvalidReplyError: without a valid review, nothing is approved."""
    return _decoded(call, Review, PipelineStage.REVIEW)


def _known(claim: Claim) -> Claim:
    operations = tuple(name for name in claim.operations if name in OPERATIONS)
    return msgspec.structs.replace(claim, operations=operations)


def _decoded(call: ModelCall, kind: type[_Kind], stage: PipelineStage) -> _Kind:
    if call.stop_reason not in COMPLETE:
        found = STOP_REASONS.get(call.stop_reason, FindingClass.MALFORMED)
        raise _invalid(stage, found, f"the reply is incomplete: {call.stop_reason or 'no reason'}")
    try:
        return msgspec.json.decode(call.reply, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        said = f"the reply does not fit the schema: {error}"
        raise _invalid(stage, FindingClass.MALFORMED, said) from None


def _invalid(stage: PipelineStage, kind: FindingClass, evidence: str) -> InvalidReplyError:
    return InvalidReplyError(PaperFinding(kind=kind, stage=stage, evidence=evidence))
