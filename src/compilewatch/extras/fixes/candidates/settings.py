"""Settings of Dynamo that the reason of a break makes plausible."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compilewatch.extras.fixes.candidates import Place, Proposer
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.records import GraphBreak


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A setting of `torch._dynamo.config` and the reasons for which it is tried."""

    setting: str
    value: str
    when: str
    summary: str


_ROWS = (
    _Row(
        setting="capture_scalar_outputs",
        value="True",
        when=r"capture_scalar_outputs|_local_scalar_dense|Tensor\.item\(\)|Tensor\.tolist",
        summary="Values that are read from tensors (.item(), .tolist()) become part of the graph.",
    ),
    _Row(
        setting="capture_dynamic_output_shape_ops",
        value="True",
        when=r"capture_dynamic_output_shape_ops|output shape depends on input Tensor data",
        summary="Operators whose output has a size that depends on data are captured.",
    ),
    _Row(
        setting="allow_rnn",
        value="True",
        when=r"config\.allow_rnn",
        summary="RNN, GRU and LSTM are captured.",
    ),
    _Row(
        setting="graph_break_on_nn_param_ctor",
        value="False",
        when=r"graph_break_on_nn_param_ctor|nn\.Parameter\(\)? ?constructor",
        summary="The constructor of nn.Parameter is captured.",
    ),
    _Row(
        setting="enable_trace_load_build_class",
        value="True",
        when=r"enable_trace_load_build_class|LOAD_BUILD_CLASS",
        summary="Classes that are defined in the call are captured.",
    ),
    _Row(
        setting="trace_autograd_ops",
        value="True",
        when=r"trace_autograd_ops|torch\.autograd\.grad",
        summary="torch.autograd.grad is captured.",
    ),
    _Row(
        setting="allow_unspec_int_on_nn_module",
        value="True",
        when=r"allow_unspec_int_on_nn_module|[Rr]ecompile limit exceeded",
        summary="Integers that are attributes of modules may vary without a new compilation.",
    ),
    _Row(
        setting="recompile_limit",
        value="64",
        when=r"[Rr]ecompile limit exceeded",
        summary="More versions of a function may be compiled before Dynamo gives up.",
    ),
)

_LOGGING = re.compile(r"ignore_logging_functions\.add\(logger\.(\w+)\)")
_WARNING = re.compile(r"builtin `_?warnings\.warn`")
_PRINT = re.compile(r"reorderable_logging_functions(?!.*logger)|builtin `?print")


class SettingsProposer(Proposer):
    def propose(self, breaks: Sequence[GraphBreak], _: Place, /) -> Iterator[FixChange]:
        reasons = "\n".join(each.reason for each in breaks)
        for row in _ROWS:
            if re.search(row.when, reasons):
                yield _setting(row.setting, row.value, row.summary)
        for method in sorted(set(_LOGGING.findall(reasons))):
            yield _ignored(f"logging.Logger.{method}", name=method)
        if _WARNING.search(reasons):
            yield _ignored("warnings.warn")
        if any(_PRINT.search(line) for line in reasons.splitlines()):
            yield _setting(
                "reorderable_logging_functions",
                "{*torch._dynamo.config.reorderable_logging_functions, print}",
                "What is printed appears after the graph has run.",
                name="reorderable_logging_functions: print",
            )


_ONE_SHAPE = re.compile(r"Unbacked|Pending|GuardOnDataDependent|data-dependent")


def after_rejection(reason: str) -> FixChange | None:
    """Return what may make changes verifiable that the verification rejected for this reason."""
    if not _ONE_SHAPE.search(reason):
        return None
    return FixChange(
        name="dynamic=False",
        kind=FixKind.SETTING,
        summary="Each shape is compiled by itself, so that a new shape costs a compilation.",
        lines=('options["dynamic"] = False',),
    )


def _setting(setting: str, value: str, summary: str, name: str = "") -> FixChange:
    return FixChange(
        name=name or f"{setting}={value}",
        kind=FixKind.SETTING,
        summary=summary,
        lines=(f"stack.enter_context(torch._dynamo.config.patch({setting}={value}))",),
    )


def _ignored(function: str, name: str = "") -> FixChange:
    """Skip a function that only says something: a message is lost, and nothing that is computed."""
    value = f"{{*torch._dynamo.config.ignore_logging_functions, {function}}}"
    patched = f"torch._dynamo.config.patch(ignore_logging_functions={value})"
    return FixChange(
        name=f"ignore_logging_functions: {name or function}",
        kind=FixKind.SETTING,
        summary=f"Compiled code skips the message of {function.removeprefix('logging.')}.",
        imports=(f"import {function.partition('.')[0]}",),
        lines=(f"stack.enter_context({patched})",),
    )
