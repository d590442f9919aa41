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
    holds_if: str


_ROWS = (
    _Row(
        setting="capture_scalar_outputs",
        value="True",
        when=r"capture_scalar_outputs|_local_scalar_dense|Tensor\.item\(\)|Tensor\.tolist",
        summary="Values that are read from tensors (.item(), .tolist()) become part of the graph.",
        holds_if="Arithmetic on numbers that are read from tensors stays within 64 bits, and "
        "divides by none that is zero: where Python has large integers and errors, a graph wraps "
        "and gives infinity.",
    ),
    _Row(
        setting="capture_dynamic_output_shape_ops",
        value="True",
        when=r"capture_dynamic_output_shape_ops|output shape depends on input Tensor data",
        summary="Operators whose output has a size that depends on data are captured.",
        holds_if="A size that depends on data is neither 0 nor 1 where the model treats these "
        "otherwise.",
    ),
    _Row(
        setting="allow_rnn",
        value="True",
        when=r"config\.allow_rnn",
        summary="RNN, GRU and LSTM are captured.",
        holds_if="Nobody changes the weights of a recurrent layer by another object than its "
        "parameters.",
    ),
    _Row(
        setting="graph_break_on_nn_param_ctor",
        value="False",
        when=r"graph_break_on_nn_param_ctor|nn\.Parameter\(\)? ?constructor",
        summary="The constructor of nn.Parameter is captured.",
        holds_if="Nobody trains or keeps a parameter that the call creates.",
    ),
    _Row(
        setting="enable_trace_load_build_class",
        value="True",
        when=r"enable_trace_load_build_class|LOAD_BUILD_CLASS",
        summary="Classes that are defined in the call are captured.",
        holds_if="Nobody keeps or compares a class that the call defines.",
    ),
    _Row(
        setting="trace_autograd_ops",
        value="True",
        when=r"trace_autograd_ops|torch\.autograd\.grad",
        summary="torch.autograd.grad is captured.",
        holds_if="Nobody differentiates again, outside of the call, what torch.autograd.grad "
        "returns.",
    ),
    _Row(
        setting="allow_unspec_int_on_nn_module",
        value="True",
        when=r"allow_unspec_int_on_nn_module|[Rr]ecompile limit exceeded",
        summary="Integers that are attributes of modules may vary without a new compilation.",
        holds_if="Integers that are attributes of modules stay within 64 bits in all arithmetic.",
    ),
    _Row(
        setting="recompile_limit",
        value="64",
        when=r"[Rr]ecompile limit exceeded",
        summary="More versions of a function may be compiled before Dynamo gives up.",
        holds_if="A function needs at most 64 versions: beyond them it runs in eager mode.",
    ),
)

_LOGGING = re.compile(r"ignore_logging_functions\.add\(logger\.(\w+)\)")
_WARNING = re.compile(r"builtin `_?warnings\.warn`")
_PRINT = re.compile(r"reorderable_logging_functions(?!.*logger)|builtin `?print")


class SettingsProposer(Proposer):
    def propose(self, breaks: Sequence[GraphBreak], _: Place, /) -> Iterator[FixChange]:
        reasons = "\n".join(graph_break.reason for graph_break in breaks)
        for row in _ROWS:
            if re.search(row.when, reasons):
                yield _setting(row.setting, row.value, row.summary, row.holds_if)
        for method in sorted(set(_LOGGING.findall(reasons))):
            yield ignored_message(f"logging.Logger.{method}", name=method)
        if _WARNING.search(reasons):
            yield ignored_message("warnings.warn")
        if any(_PRINT.search(line) for line in reasons.splitlines()):
            yield _setting(
                "reorderable_logging_functions",
                "{*torch._dynamo.config.reorderable_logging_functions, print}",
                "What is printed appears after the graph has run.",
                "Nobody needs what is printed in its place among other output, or if the graph "
                "raises an error.",
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
        holds_if=(
            "There are few shapes: each costs a compilation, and after the limit of recompilations "
            "the model runs in eager mode.",
        ),
    )


def _setting(setting: str, value: str, summary: str, holds_if: str, name: str = "") -> FixChange:
    return FixChange(
        name=name or f"{setting}={value}",
        kind=FixKind.SETTING,
        summary=summary,
        lines=(f"stack.enter_context(torch._dynamo.config.patch({setting}={value}))",),
        holds_if=(holds_if,),
    )


def ignored_message(function: str, name: str = "") -> FixChange:
    """Skip a function that only says something: a message is lost, and nothing that is computed."""
    value = f"{{*torch._dynamo.config.ignore_logging_functions, {function}}}"
    patched = f"torch._dynamo.config.patch(ignore_logging_functions={value})"
    return FixChange(
        name=f"ignore_logging_functions: {name or function}",
        kind=FixKind.SETTING,
        summary=f"Compiled code skips the message of {function.removeprefix('logging.')}.",
        imports=(f"import {function.partition('.')[0]}",),
        lines=(f"stack.enter_context({patched})",),
        holds_if=(
            "Nobody needs the message of compiled code: no handler counts it, and no filter turns "
            "it into an error.",
        ),
    )
