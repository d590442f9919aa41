"""Causes in reasons as torch writes them, with the wrappers it puts around them."""

from __future__ import annotations

import pytest
from torch._dynamo import exc

from compilewatch.report.wording import registry_page
from compilewatch.worker.targets.dynamo.graph_breaks import (
    CODES,
    classify,
    innermost,
    registry,
    short_code,
)

pytestmark = pytest.mark.torch


def _unsupported(gb_type: str, from_exc: Exception | None = None) -> exc.Unsupported:
    extra = {} if from_exc is None else {"from_exc": from_exc}
    with pytest.raises(exc.Unsupported) as caught:
        exc.unimplemented(
            gb_type=gb_type,
            context="the context",
            explanation="Why\nit breaks.",
            hints=["Do this.", "Or\nthat."],
            **extra,
        )
    return caught.value


def test_a_registered_break_has_id_type_explanation_and_hints() -> None:
    cause = classify(_unsupported("Data-dependent branching").msg)
    assert (cause.code, cause.gb_id) == ("GB0170", "GB0170")
    assert cause.gb_type == "Data-dependent branching"
    assert cause.explanation == "Why it breaks."
    assert cause.hints == ("Do this.", "Or that.")


@pytest.mark.parametrize(
    "prefix",
    [
        "Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):\n\n",
        "Failed to handle graph break gracefully. Skipping the function and falling back to eager. "
        "Graph break encountered:\n\n",
        "Encountered graph break that we cannot resume from. Compiling up to the previous "
        "resumable state, then skipping the rest of the function. Graph break encountered:\n\n",
        "",
    ],
)
def test_a_wrapper_is_no_cause(prefix: str) -> None:
    reason = prefix + _unsupported("Data-dependent branching").msg
    assert classify(reason).code == "GB0170"
    assert innermost(reason).startswith("Data-dependent branching")


def test_a_loop_that_cannot_be_resumed_in_is_no_cause() -> None:
    first = _unsupported("Data-dependent branching")
    loop = _unsupported("graph break in loop", from_exc=first)
    assert classify(f"Graph break encountered:\n\n{loop.msg}").code == "GB0170"


def test_a_type_that_the_registry_lacks_keeps_its_name_but_not_as_the_code() -> None:
    cause = classify(_unsupported("Something new in torch").msg)
    assert (cause.code, cause.gb_id) == ("unregistered", None)
    assert cause.gb_type == "Something new in torch"


@pytest.mark.parametrize(
    ("message", "names", "code"),
    [
        ("Could not guard on data-dependent expression Eq(u0, 1)", (), "data_dependent_guard"),
        ("?", ("UserError", "GuardOnDataDependentSymNode"), "data_dependent_guard"),
        ("Pending unbacked symbols {u0} not in returned outputs", (), "unbacked_symint"),
        ("Constraints violated (L['x'].size()[0])!", ("ConstraintViolationError",),
         "constraint_violation"),
        ("aten.item", ("DataDependentOutputException",), "data_dependent_output"),
        ("Dynamo failed to run FX node", ("TorchRuntimeError",), "fake_tensor"),
        ("?", ("UncapturedHigherOrderOpError", "Unsupported"), "higher_order_op"),
        ("raised exception KeyError", ("ObservedKeyError",), "observed_exception"),
        ("torch.compile with fullgraph=True found no compiled frames.", ("RuntimeError",),
         "skipped_frame"),
        ("Dynamo: expected not to compile nested code", ("RuntimeError",), "nested_compile"),
        ("Hard failure due to fullgraph=True", ("FailOnRecompileLimitHit", "Unsupported"),
         "recompile_limit"),
        ("backend='x' raised:", ("BackendCompilerFailed",), "backend_error"),
        ("SpeculationLog diverged at index 1", ("SpeculationLogDivergence",),
         "speculation_divergence"),
        ("RecursionError: maximum recursion depth exceeded", ("InternalTorchDynamoError",),
         "recursion"),
        ("KeyError: 'x'", ("InternalTorchDynamoError",), "internal_error"),
        ("anything else", ("ZeroDivisionError",), "other"),
    ],
)  # fmt: skip
def test_what_has_no_registry_id_gets_a_bounded_code(
    message: str, names: tuple[str, ...], code: str
) -> None:
    assert short_code(message, names) == code
    assert code in CODES


def test_the_registry_is_torchs_own() -> None:
    known = registry()
    assert len(known) > 400
    for gb_type, gb_id in exc._load_gb_type_to_gb_id_map().items():
        assert gb_type in known
        # Torch lets an old type of one entry take the place of another entry's: two do in 2.13.
        if gb_type not in (
            "bad device argument to torch.get_device_module",
            "Failed to make weakref to User Object",
        ):
            assert known[gb_type] == gb_id


def test_the_page_of_an_entry_is_the_one_that_torch_prints() -> None:
    assert registry_page("GB0170") == exc.get_gbid_documentation_link("Data-dependent branching")
    assert registry_page("GB7000") == exc.get_gbid_documentation_link("graph break in loop")
