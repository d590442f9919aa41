"""Changes that are tempting and wrong for the models of `tempting.py`, each with the reason.

`right` is a change that removes the same break and computes the same, for most of them: a script
that rejects everything would reject these, too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tempting
import tempting_proposed
import torch
from tempting import LARGE_BATCH, WIDTH
from torch import Tensor, nn

from compilewatch.extras.fixes.candidates import (
    Place,
    after_rejection,
    as_python_value,
    given_as_numbers,
    ignored_message,
    traced,
    usage,
)
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.extras.fixes.rewriting import change, site_at
from compilewatch.extras.fixes.rules import RULES
from compilewatch.records import TensorSummary


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, a fix that is wrong for it and why, and one that is right.

    `requirement` is the beginning of the name of the requirement that rejects the wrong one, and
    `condition` a part of a condition under which the right one holds.
    """

    model: type[nn.Module]
    wrong: FixChange | None = None
    why: str = ""
    requirement: str = ""
    right: FixChange | None = None
    condition: str = ""
    train: bool = False
    inputs: Callable[[int], tuple[Tensor, ...] | dict[str, Tensor]] = lambda rows: (
        torch.rand(rows, WIDTH) + 0.1,
    )

    @property
    def name(self) -> str:
        return self.model.__name__

    def arguments(self, shape: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of the first or the second shape; the caller has set the seed."""
        made = self.inputs(LARGE_BATCH if shape == "first shape" else LARGE_BATCH + 2)
        return ((), made) if isinstance(made, dict) else (made, {})


def setting(text: str) -> FixChange:
    return FixChange(
        name=text,
        kind=FixKind.SETTING,
        summary="A setting of Dynamo.",
        lines=(f"stack.enter_context(torch._dynamo.config.patch({text}))",),
    )


def replaced(
    by: Callable[..., Any], where: str = "type(model)", what: str = "forward"
) -> FixChange:
    """Return the change that puts a function in the place of another, `forward` by default."""
    return FixChange(
        name=f"{what} replaced by {by.__name__}",
        kind=FixKind.REWRITE,
        summary=(by.__doc__ or "").splitlines()[0],
        imports=(
            "import math",
            "import sys",
            "from typing import Any",
            "from unittest import mock",
            "from torch import Tensor",
        ),
        definitions=(inspect.getsource(by),),
        lines=(f"stack.enter_context(mock.patch.object({where}, {what!r}, {by.__name__}))",),
    )


def wrapped(wrapper: str, what: str) -> FixChange:
    """Return the change that wraps a function of the file of the model, by `torch.compiler`."""
    return FixChange(
        name=f"{what} in {wrapper}",
        kind=FixKind.FUNCTION,
        summary=f"The function {what} is wrapped by {wrapper}.",
        imports=("import sys", "from unittest import mock"),
        definitions=(
            "_wrapped = {}",
            "def wrapped(model):\n"
            '    """Wrap the function once."""\n'
            "    home = sys.modules[type(model).__module__]\n"
            f"    _wrapped.setdefault(home, {wrapper}(home.{what}))\n"
            "    return home, _wrapped[home]\n",
        ),
        lines=(
            "home, by = wrapped(model)",
            f"stack.enter_context(mock.patch.object(home, {what!r}, by))",
        ),
    )


def wrapped_method(wrapper: str, what: str) -> FixChange:
    """Return the change that wraps a method of the model."""
    return FixChange(
        name=f"{what} in {wrapper}",
        kind=FixKind.FUNCTION,
        summary=f"The method {what} is wrapped by {wrapper}.",
        lines=(f"model.{what} = {wrapper}(type(model).{what}.__get__(model))",),
    )


def lines(name: str, *statements: str, kind: FixKind = FixKind.USAGE) -> FixChange:
    return FixChange(name=name, kind=kind, summary=f"{name}.", lines=statements)


def masked(rows: int) -> tuple[Tensor, ...]:
    return torch.rand(rows, WIDTH) + 0.1, torch.ones(rows, WIDTH, dtype=torch.int64)


SCALARS = setting("capture_scalar_outputs=True")
HOME = "sys.modules[type(model).__module__]"


def without_factor(x: Tensor, _: int) -> Tensor:
    """Return the tensor, as if the function did nothing but take a lock."""
    return x


def without_scaling(self: Any, x: Tensor) -> Tensor:
    """The branch is left out."""
    return self.linear(x)


def scaled(self: Any, x: Tensor) -> Tensor:
    """The branch that depends on data is a selection, the other one stays."""
    y = self.linear(x)
    if x.shape[0] > 4:
        y = torch.where(y.abs().sum() > 0, y / x.shape[0], y)
    return y


def added(self: Any, x: Tensor) -> Tensor:
    """The branch is a selection, into a new tensor."""
    x = torch.where(x.sum() > -1000, x + 1, x)
    return x * 2


def added_in_place(self: Any, x: Tensor) -> Tensor:
    """The branch is a selection, into the same tensor."""
    x.copy_(torch.where(x.sum() > -1000, x + 1, x))
    return x * 2


def unchecked(self: Any, x: Tensor) -> Tensor:
    """The check is left out."""
    return (x + 1) * 2


def checked(self: Any, x: Tensor) -> Tensor:
    """The check is made when the graph runs."""
    y = x + 1
    torch._assert_async(~torch.isnan(y).any(), "not a number")
    return y * 2


def drawn_in_one_line(self: Any, x: Tensor) -> Tensor:
    """The two draws are in one line, the second first."""
    return torch.randn_like(x) + x * torch.rand_like(x) * torch.where(x.sum() > math.inf, 2, 1)


def drawn_in_order(self: Any, x: Tensor) -> Tensor:
    """The branch is a selection, and the order of the draws stays."""
    scale = torch.rand_like(x)
    scale = torch.where(x.sum() > math.inf, scale * 2, scale)
    return x * scale + torch.randn_like(x)


def mean_while_eager(self: Any, x: Tensor) -> Tensor:
    """The running mean is updated in eager mode only."""
    if not torch.compiler.is_compiling() and x.isfinite().all():
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x * 2


def mean_selected(self: Any, x: Tensor) -> Tensor:
    """The running mean is a selection."""
    new = self.mean * 0.9 + x.detach().mean(0) * 0.1
    self.mean.copy_(torch.where(x.isfinite().all(), new, self.mean))
    return x * 2


def at_least_one_row(self: Any, x: Tensor) -> Tensor:
    """The number of rows is promised to be more than zero."""
    index = (x[:, 0] > 0).nonzero()[:, 0]
    torch._check(index.shape[0] > 0)
    return x[index].mean(0)


def mean_of_selected(self: Any, x: Tensor) -> Tensor:
    """All rows are added, those that are not selected as zeros."""
    chosen = x[:, :1] > 0
    return torch.where(chosen, x, 0).sum(0) / chosen.sum().clamp(min=1)


def multiplied_by_attribute(self: Any, x: Tensor) -> Tensor:
    """The number is read before the call, into an attribute."""
    self.step += 1
    return x * (self.current + 1)


def multiplied_by_tensor(self: Any, x: Tensor) -> Tensor:
    """The number stays in its tensor."""
    self.step += 1
    return x * self.step


def halved(x: Tensor) -> Tensor:
    """The branch is a selection."""
    return torch.where(x.abs().max() > 100, x / 2, x)


def divided_by_constant(self: Any, x: Tensor) -> Tensor:
    """The largest value is detached."""
    y = self.linear(x)
    largest = y.abs().max().detach()
    return y / torch.where(largest > 0, largest, 1)


def divided(self: Any, x: Tensor) -> Tensor:
    """The divisor is a selection."""
    y = self.linear(x)
    largest = y.abs().max()
    return y / torch.where(largest > 0, largest, 1)


def selected_columns(self: Any, x: Tensor) -> Tensor:
    """The columns are selected by an index that is a tensor."""
    return x.index_select(1, self.start + torch.arange(4))


def without_figures(self: Any, x: Tensor) -> dict[str, Tensor]:
    """The figure is left out."""
    return {"output": x * 2}


def counted_as_floats(self: Any, x: Tensor) -> Tensor:
    """The numbers are stacked as tensors."""
    return torch.stack([torch.tensor(float(x.shape[0])), (x > 0).float().sum()])


def counted(self: Any, x: Tensor) -> Tensor:
    """The numbers are stacked as tensors of integers."""
    return torch.stack([torch.tensor(x.shape[0]), (x > 0).sum()])


def unbound(self: Any, x: Tensor) -> tuple[Tensor, ...]:
    """All rows are multiplied at once; `unbind` returns a tuple."""
    return torch.unbind(torch.where(x.isnan().any(), torch.nan_to_num(x), x) * 2, 1)


def unbound_to_list(self: Any, x: Tensor) -> list[Tensor]:
    """The branch is a selection."""
    x = torch.where(x.isnan().any(), torch.nan_to_num(x), x)
    return [row * 2 for row in torch.unbind(x, 1)]


def uncounted() -> None:
    """Nothing is counted."""


def without_scale(self: Any, x: Tensor) -> Tensor:
    """The attribute is not set."""
    return x * 2


def never_doubled(self: Any, x: Tensor) -> Tensor:
    """The branch is never taken."""
    return self.linear(x)


def doubled(self: Any, x: Tensor) -> Tensor:
    """The branch is a selection."""
    y = self.linear(x)
    return torch.where(self.linear.weight.sum() > 0, y * 2, y)


def root(self: Any, x: Tensor) -> Tensor:
    """The branch is left out."""
    return x.sqrt()


def root_of_selected(self: Any, x: Tensor) -> Tensor:
    """The branch is a selection."""
    return torch.where(x.min() < 0, x - x.min(), x).sqrt()


def divided_by_largest(self: Any, x: Tensor) -> Tensor:
    """The number stays in its tensor, and the special case is left out."""
    return x / x.abs().max()


def divided_unless_zero(self: Any, x: Tensor) -> Tensor:
    """The number stays in its tensor, and the special case is a selection."""
    largest = x.abs().max()
    return x / torch.where(largest == 0, 1, largest)


def unlimited(self: Any, x: Tensor) -> Tensor:
    """The branch for what is not finite is left out."""
    return x * 2 + 1


def limited(self: Any, x: Tensor) -> Tensor:
    """The branch is a selection."""
    y = x * 2
    return torch.where(torch.isinf(y).any(), torch.clamp(y, min=-1000.0, max=1000.0), y) + 1


def ignoring_mask(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The branch is left out."""
    return x * 2


def zero_if_empty(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The branch is a selection."""
    return torch.where(mask.sum() == 0, torch.zeros_like(x), x * 2)


def always_masked(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The mask is always used: it changes nothing if it hides nothing."""
    return x.masked_fill(mask == 0, -1.0) * 2


ONCE = (
    "if not model.prepared:",
    "    with torch.no_grad():",
    "        model(*[each.clone() for each in args], **kwargs)",
)


def both(first: FixChange, *others: FixChange) -> FixChange:
    """Return several changes as one."""
    return FixChange(
        name=" and ".join(each.name for each in (first, *others)),
        kind=first.kind,
        summary=" ".join(each.summary for each in (first, *others)),
        imports=(*first.imports, *(line for each in others for line in each.imports)),
        definitions=(*first.definitions, *(text for each in others for text in each.definitions)),
        lines=(*first.lines, *(line for each in others for line in each.lines)),
        edits=tuple(edit for each in (first, *others) for edit in each.edits),
        functions=tuple(name for each in (first, *others) for name in each.functions),
        holds_if=tuple(text for each in (first, *others) for text in each.holds_if),
    )


TEMPTING = (
    Case(
        model=tempting.LargeBatch,
        wrong=replaced(without_scaling),
        why="the second shape takes a branch that the first does not",
        requirement="eager results, seed 0",
        right=replaced(scaled),
    ),
    Case(
        model=tempting.ChangesInput,
        wrong=replaced(added),
        why="the caller's tensor is no longer changed in place",
        requirement="eager results, seed 0",
        right=replaced(added_in_place),
    ),
    Case(
        model=tempting.ChecksForNan,
        wrong=replaced(unchecked),
        why="NaN is no longer an error",
        requirement="results for NaN",
        right=replaced(checked),
    ),
    Case(
        model=tempting.DrawsTwice,
        wrong=replaced(drawn_in_one_line),
        why="random numbers are drawn in another order",
        requirement="eager results, seed 0",
        right=replaced(drawn_in_order),
    ),
    Case(
        model=tempting.DrawsNumber,
        wrong=wrapped("torch.compiler.assume_constant_result", "drawn"),
        why="one random number is kept for all calls",
        requirement="results of the graph, seed 0",
        right=SCALARS,
    ),
    Case(
        model=tempting.CountsInBuffer,
        wrong=lines("called once before compiling", *ONCE),
        why="the call before counts as a step",
        requirement="eager results, seed 0",
        right=lines("called once, and its buffers put back", *ONCE, "    model.steps.zero_()"),
    ),
    Case(
        model=tempting.AveragesInBuffer,
        wrong=replaced(mean_while_eager),
        why="compiled code does not update the running mean",
        requirement="results of the graph, seed 0",
        right=replaced(mean_selected),
    ),
    Case(
        model=tempting.SelectsRows,
        wrong=both(setting("capture_dynamic_output_shape_ops=True"), replaced(at_least_one_row)),
        why="data may select no row",
        requirement="results for zeros",
        right=replaced(mean_of_selected),
    ),
    Case(
        model=tempting.ReadsStep,
        wrong=both(
            lines("the step is read before the call", "model.current = int(model.step)"),
            replaced(multiplied_by_attribute),
        ),
        why="each value of the attribute is compiled anew",
        requirement="compilations do not grow",
        right=replaced(multiplied_by_tensor),
    ),
    Case(
        model=tempting.HoldsNumbers,
        wrong=both(as_python_value("large"), as_python_value("step")),
        why="the tensor is changed in place, a number is not",
        requirement="eager results, seed 0",
        right=as_python_value("large"),
    ),
    Case(
        model=tempting.CallsHelper,
        wrong=wrapped("torch.compiler.allow_in_graph", "halved_if_large"),
        why="the compiler looks into the function, and fails at its branch",
        requirement="it has fewer graph breaks",
        right=replaced(halved, HOME, "halved_if_large"),
    ),
    Case(
        model=tempting.CallsRandomHelper,
        wrong=wrapped("torch.compiler.allow_in_graph", "jittered"),
        why="Inductor keeps the random number of its compilation",
        requirement="results of Inductor",
    ),
    Case(
        model=tempting.CallsLockedHelper,
        wrong=replaced(without_factor, HOME, "locked"),
        why="more than the lock is left out",
        requirement="eager results, seed 0",
        right=traced("tempting", "locked"),
    ),
    Case(
        model=tempting.CallsRememberingHelper,
        wrong=traced("tempting", "remembered"),
        why="sizes are kept when the model is compiled, and not at each call",
        requirement="results of the graph, seed 0",
    ),
    Case(
        model=tempting.Normalises,
        wrong=replaced(divided_by_constant),
        why="no gradient flows through the largest value",
        requirement="eager results, seed 0",
        right=replaced(divided),
        train=True,
    ),
    Case(
        model=tempting.ReturnsView,
        wrong=replaced(selected_columns),
        why="what the caller writes into the output no longer reaches its tensor",
        requirement="eager results, seed 0",
    ),
    Case(
        model=tempting.ReturnsFigures,
        wrong=replaced(without_figures),
        why="an output is dropped",
        requirement="eager results, seed 0",
        right=SCALARS,
    ),
    Case(
        model=tempting.CountsPositive,
        wrong=replaced(counted_as_floats),
        why="the output is of another dtype",
        requirement="eager results, seed 0",
        right=replaced(counted),
    ),
    Case(
        model=tempting.ReturnsList,
        wrong=replaced(unbound),
        why="the list is a tuple, to which nothing can be appended",
        requirement="eager results, seed 0",
        right=replaced(unbound_to_list),
    ),
    Case(
        model=tempting.CountsInGlobal,
        wrong=replaced(uncounted, HOME, "count_call"),
        why="a global is no longer updated",
        requirement="eager results, seed 0",
    ),
    Case(
        model=tempting.KeepsScale,
        wrong=replaced(without_scale),
        why="an attribute that the caller reads is no longer set",
        requirement="eager results, seed 0",
    ),
    Case(
        model=tempting.DependsOnWeights,
        wrong=replaced(never_doubled),
        why="other weights take the other branch",
        requirement="eager results, seed 1",
        right=replaced(doubled),
    ),
    Case(
        model=tempting.ForNegative,
        wrong=replaced(root),
        why="negative numbers take the branch",
        requirement="results for negative numbers",
        right=replaced(root_of_selected),
    ),
    Case(
        model=tempting.ForZero,
        wrong=replaced(divided_by_largest),
        why="zeros are divided by zero",
        requirement="results for zeros",
        right=replaced(divided_unless_zero),
    ),
    Case(
        model=tempting.ForInfinity,
        wrong=replaced(unlimited),
        why="what is infinite is no longer limited",
        requirement="results for infinity",
        right=replaced(limited),
    ),
    Case(
        model=tempting.ForEmptyMask,
        wrong=replaced(ignoring_mask),
        why="a mask that hides everything takes the branch",
        requirement="results for integers that are all zero",
        right=replaced(zero_if_empty),
        inputs=masked,
    ),
    Case(
        model=tempting.ForPaddedMask,
        wrong=replaced(ignoring_mask),
        why="a mask that hides something takes the branch",
        requirement="results for integers that are all zero",
        right=replaced(always_masked),
        inputs=masked,
    ),
    Case(
        model=tempting.BreaksOften,
        wrong=wrapped_method("torch.compiler.disable", "part"),
        why="most of the model is no longer compiled",
        requirement="the graphs contain the model",
    ),
    Case(
        model=tempting.Reads,
        wrong=lines("nothing is compiled", 'options["disable"] = True', kind=FixKind.SETTING),
        why="nothing is compiled",
        requirement="fullgraph=True accepts it",
        right=SCALARS,
    ),
    Case(
        model=tempting.ReadsTwice,
        wrong=lines(
            "set for good",
            "torch._dynamo.config.capture_scalar_outputs = True",
            kind=FixKind.SETTING,
        ),
        why="the setting stays for all models of the program",
        requirement="nothing stays changed",
        right=SCALARS,
    ),
)


def rewritten(model: type[nn.Module], rule: str, text: str) -> FixChange:
    """Return the change that a rule makes at the line of a model with this text."""
    lines, first = inspect.getsourcelines(model)
    line = next(first + number for number, each in enumerate(lines) if text in each)
    source = Path(inspect.getsourcefile(model) or "").read_text()
    site = site_at(source, "tempting_proposed.py", line)
    row = next(each for each in RULES if each.name == rule)
    assert site is not None
    return change(row, row.apply(site), lambda _: source)


CHOSEN = "chosen instead of branched"
CALLED_ONCE = next(usage((), Place(request=None, source_of=open)))  # type: ignore[arg-type]


def integers(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(1, 9, (rows, WIDTH)),)


def with_count(rows: int) -> tuple[Tensor, ...]:
    return torch.rand(rows, WIDTH) + 0.1, torch.tensor(3)


def with_levels(rows: int) -> dict[str, Tensor]:
    sizes = [[2, 2], [2, 1]] if rows == LARGE_BATCH else [[2, 3], [1, 1]]
    length = sum(height * width for height, width in sizes)
    return {"x": torch.rand(2, length, WIDTH), "spatial_shapes": torch.tensor(sizes)}


def with_ids(rows: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 16, (rows, WIDTH))}


NUMBERS = given_as_numbers(TensorSummary(name="spatial_shapes", dtype="int64", shape=(2, 2)))
EACH_SHAPE = after_rejection("data-dependent")
assert NUMBERS is not None
assert EACH_SHAPE is not None
EXPERTS = both(
    setting("capture_dynamic_output_shape_ops=True"),
    rewritten(tempting_proposed.Experts, "all rows visited", "nonzero()"),
)

PROPOSED = (
    Case(
        model=tempting_proposed.OtherType,
        wrong=rewritten(tempting_proposed.OtherType, CHOSEN, "if x.max()"),
        why="the branch that is not taken has another type",
        requirement="both branches",
        inputs=integers,
    ),
    Case(
        model=tempting_proposed.ChangedLater,
        wrong=rewritten(tempting_proposed.ChangedLater, CHOSEN, "if x.max()"),
        why="the caller's tensor is no longer changed in place",
        requirement="both branches",
    ),
    Case(
        model=tempting_proposed.ReturnsItself,
        wrong=rewritten(tempting_proposed.ReturnsItself, CHOSEN, "if x.max()"),
        why="a copy is returned instead of the caller's tensor",
        requirement="both branches",
    ),
    Case(
        model=tempting_proposed.LimitsOfIntegers,
        wrong=rewritten(tempting_proposed.LimitsOfIntegers, CHOSEN, "if torch.isinf"),
        why="integers have no finfo, which only the branch that is not taken needs",
        requirement="Dynamo captures it",
        inputs=integers,
    ),
    Case(
        model=tempting_proposed.WritesParameter,
        wrong=rewritten(
            tempting_proposed.WritesParameter, "assigned where a mask is true", "if mask.any()"
        ),
        why="a parameter cannot be written into, not even nothing",
        requirement="Dynamo captures it",
        train=True,
    ),
    Case(
        model=tempting_proposed.CatchesItsCheck,
        wrong=rewritten(tempting_proposed.CatchesItsCheck, "check in the graph", "if x.max()"),
        why="the model catches the error of its own check",
        requirement="results for large numbers",
    ),
    Case(
        model=tempting_proposed.Experts,
        right=EXPERTS,
        condition="a gradient of zeros instead",
    ),
    Case(
        model=tempting_proposed.TrainedExperts,
        wrong=EXPERTS,
        why="experts without a row get zeros as gradient",
        requirement="eager results, seed 0",
        train=True,
    ),
    Case(
        model=tempting_proposed.ReadsGlobal,
        right=traced("tempting_proposed", "scaled"),
        condition="tempting_proposed.FACTOR",
    ),
    Case(
        model=tempting_proposed.ReadsObject,
        right=traced("tempting_proposed", "scaled_by_settings"),
        condition="tempting_proposed.SETTINGS",
    ),
    Case(
        model=tempting_proposed.ReadsOtherModule,
        right=traced("tempting_proposed", "scaled_by_other"),
        condition="tempting_counts.SCALE",
    ),
    Case(
        model=tempting_proposed.CountsElsewhere,
        wrong=traced("tempting_proposed", "counting"),
        why="another file counts when the model is compiled, and not at each call",
        requirement="results of the graph, seed 0",
    ),
    Case(
        model=tempting_proposed.CountsInObject,
        wrong=traced("tempting_proposed", "counting_in_object"),
        why="an object counts when the model is compiled, and not at each call",
        requirement="results of the graph, seed 0",
    ),
    Case(
        model=tempting_proposed.RemembersInDefault,
        wrong=traced("tempting_proposed", "remembering"),
        why="a default value remembers when the model is compiled, and not at each call",
        requirement="results of the graph, seed 0",
    ),
    Case(model=tempting_proposed.SetsLater, right=as_python_value("scale")),
    Case(model=tempting_proposed.SetsInDict, right=as_python_value("scale")),
    Case(
        model=tempting_proposed.FillsLater,
        wrong=as_python_value("scale"),
        why="the seventh call writes into the tensor",
        requirement="Dynamo captures it",
    ),
    Case(
        model=tempting_proposed.LogsForOthers,
        right=ignored_message("logging.Logger.warning", name="warning"),
        condition="no handler counts it",
    ),
    Case(
        model=tempting_proposed.PreparesItself,
        wrong=CALLED_ONCE,
        why="the call before is counted in another file",
        requirement="eager results, seed 0",
    ),
    Case(
        model=tempting_proposed.Powers,
        right=SCALARS,
        condition="No integer read at tempting_proposed.py",
        inputs=with_count,
    ),
    Case(
        model=tempting_proposed.DividesInPython,
        right=SCALARS,
        condition="100: eager mode raises ZeroDivisionError",
        inputs=with_count,
    ),
    Case(
        model=tempting_proposed.DividesByNumber,
        right=SCALARS,
        condition="as for 1 / 0",
    ),
    Case(
        model=tempting_proposed.CatchesNumber,
        right=SCALARS,
        condition="No integer read at tempting_proposed.py",
        inputs=with_count,
    ),
    Case(
        model=tempting_proposed.Draws,
        right=SCALARS,
        inputs=lambda rows: (torch.rand(rows, WIDTH),),
    ),
    Case(
        model=tempting_proposed.Levels, right=both(EACH_SHAPE, SCALARS, NUMBERS), inputs=with_levels
    ),
    Case(model=tempting_proposed.Embeds, right=SCALARS, inputs=with_ids),
    Case(
        model=tempting_proposed.Increments,
        right=rewritten(tempting_proposed.Increments, CHOSEN, "if torch.isinf"),
    ),
)
"""Models for which what `fix` proposes is wrong, or right under a condition."""

CASES = (*TEMPTING, *PROPOSED)
