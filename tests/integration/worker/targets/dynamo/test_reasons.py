"""Causes in reasons as torch writes them, with the wrappers it puts around them."""

import pytest
from torch._dynamo import exc

from compilewatch.report.wording import registry_page
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo.graph_breaks import classify

pytestmark = pytest.mark.torch

BRANCH = "Data-dependent branching"
LOOP = "graph break in loop"


def _unsupported(gb_type: str, **extra: Exception) -> exc.Unsupported:
    hints = ["Do this.", "Or\nthat."]
    with pytest.raises(exc.Unsupported) as caught:
        exc.unimplemented(
            gb_type=gb_type, context="it", explanation="Why\nit breaks.", hints=hints, **extra
        )
    return caught.value


def test_a_registered_break_has_id_type_explanation_and_hints_and_another_keeps_its_type() -> None:
    cause = classify(_unsupported(BRANCH).msg)
    assert (cause.code, cause.gb_id, cause.gb_type) == ("GB0170", "GB0170", BRANCH)
    assert (cause.explanation, cause.hints) == ("Why it breaks.", ("Do this.", "Or that."))
    cause = classify(_unsupported("Something new in torch").msg)
    assert (cause.code, cause.gb_id) == ("unregistered", None)
    assert cause.gb_type == "Something new in torch"


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
def test_neither_a_wrapper_nor_a_loop_that_cannot_be_resumed_in_is_a_cause(prefix: str) -> None:
    first = _unsupported(BRANCH)
    assert classify(prefix + first.msg).code == "GB0170"
    assert graph_breaks.innermost(prefix + first.msg).startswith(BRANCH)
    loop = _unsupported(LOOP, from_exc=first)
    assert classify(f"Graph break encountered:\n\n{loop.msg}").code == "GB0170"


@pytest.mark.parametrize(
    ("message", "names", "code"),
    [
        ("Could not guard on data-dependent expression Eq(u0, 1)", "", "data_dependent_guard"),
        ("?", "UserError GuardOnDataDependentSymNode", "data_dependent_guard"),
        ("Pending unbacked symbols {u0} not in returned outputs", "", "unbacked_symint"),
        ("Constraints violated (L['x'].size()[0])!", "ConstraintViolationError",
         "constraint_violation"),
        ("aten.item", "DataDependentOutputException", "data_dependent_output"),
        ("Dynamo failed to run FX node", "TorchRuntimeError", "fake_tensor"),
        ("?", "UncapturedHigherOrderOpError Unsupported", "higher_order_op"),
        ("raised exception KeyError", "ObservedKeyError", "observed_exception"),
        ("torch.compile with fullgraph=True found no compiled frames.", "RuntimeError",
         "skipped_frame"),
        ("Dynamo: expected not to compile nested code", "RuntimeError", "nested_compile"),
        ("Hard failure due to fullgraph=True", "FailOnRecompileLimitHit Unsupported",
         "recompile_limit"),
        ("backend='x' raised:", "BackendCompilerFailed", "backend_error"),
        ("SpeculationLog diverged at index 1", "SpeculationLogDivergence",
         "speculation_divergence"),
        ("RecursionError: maximum recursion depth", "InternalTorchDynamoError", "recursion"),
        ("KeyError: 'x'", "InternalTorchDynamoError", "internal_error"),
        ("anything else", "ZeroDivisionError", "other"),
    ],
)  # fmt: skip
def test_what_has_no_registry_id_gets_a_bounded_code(message: str, names: str, code: str) -> None:
    assert graph_breaks.short_code(message, names.split()) == code
    assert code in graph_breaks.CODES


def test_the_registry_and_its_pages_are_torchs_own() -> None:
    known, torchs = graph_breaks.registry(), exc._load_gb_type_to_gb_id_map()
    assert len(known) > 400
    # Torch lets an old type of one entry take the place of another entry's: two do in 2.13.
    assert torchs.keys() <= known.keys()
    assert sum(known[gb_type] != gb_id for gb_type, gb_id in torchs.items()) <= 2
    assert registry_page("GB0170") == exc.get_gbid_documentation_link(BRANCH)
    assert registry_page("GB7000") == exc.get_gbid_documentation_link(LOOP)
