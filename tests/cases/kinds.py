"""One small model for each further kind of graph break that a few lines of own code can meet.

`breaks.py` beside this file pins all that Dynamo does to a module; here only places and codes are
pinned. A line that ends with `# break: CODE …` breaks with these codes of PyTorch's registry, in
the first two calls; no other line of a model does. A code in parentheses is a second report of the
same break: torch could not cut there, and gave the frame up. `plain_kinds.py` asks torch alone, and
the tests hold the marks to it.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import decimal
import functools
import gc
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import pickle
import random
import re
import string
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Values of tensors, in Python.


def to_list(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    rows = y.tolist()  # break: GB0109
    return y * len(rows)


def as_float(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * float(y.sum())  # break: GB0124


def while_values_allow(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    while y.sum() < 100:  # break: GB0170
        y = y * 2
    return y


def asserted(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    assert (y > 0).all(), f"negative: {y}"  # break: GB0170
    return y * 2


def any_of_rows(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * any(row.sum() > 0 for row in y)  # break: GB0170 (GB8335)


def equal(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * 2 if torch.equal(y, x) else y  # break: GB0033


def root_of(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * math.sqrt(y.sum())  # break: GB0033


def index_of(self: nn.Module, x: Tensor) -> Tensor:
    y = (x + 1).long()
    return x * operator.index(y.sum())  # break: GB0124


def unique(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return torch.unique(y) * 2  # break: GB0036


def one_hot(self: nn.Module, x: Tensor) -> Tensor:
    y = x.long()
    return nn.functional.one_hot(y) * 2  # break: GB0246


def formatted(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * len(f"{y.sum():.2f}")  # break: GB0088


def written_out(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * len(repr(y))  # break: GB0569


def identity(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (id(y) > 0)  # break: GB9316 (GB4501)


def in_a_set(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    SEEN.add(y)  # break: GB0222
    return y * 2


SEEN: set[Any] = {torch.ones(1)}


def sorted_tensors(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    low, _ = sorted([y.sum(), y.mean()])  # break: GB0207
    return y * low


def grouped_tensors(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    keys = [key for key, _ in itertools.groupby([y.sum(), y.sum()])]  # break: GB0152 GB9493
    return y * len(keys)


def lists_compared(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * ([y.sum()] < [y.mean()])  # break: GB6622


def largest_by_key(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * max([1, 2], key=lambda factor: y[0, 0] * factor)  # break: GB5687


# What tensors are made of.


def data_pointer(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (y.data_ptr() != 0)  # break: GB5976


def storage_size(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * y.untyped_storage().nbytes()  # break: GB0156


def resized(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    y.resize_(2, 2)  # break: GB0126
    return y * 2


def resized_as(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    y.resize_as_(x[:1])  # break: GB0127
    return y * 2


def shared_memory(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    y.share_memory_()  # break: GB4197
    return y * 2


def other_data(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    x.data = y.double()  # break: GB0220
    return x * 2


def own_data(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    y.data = y.data * 2  # break: GB0056
    return y


def sparse(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y.to_sparse().to_dense() * 2  # break: GB0277 GB0015


def nested(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return torch.nested.nested_tensor([y, y]).to_padded_tensor(0.0)  # break: GB0090 GB0016


def out_not_contiguous(self: nn.Module, x: Tensor) -> Tensor:
    y = torch.empty(4, 3).t()
    torch.add(x, 1, out=y)  # break: GB0242
    return y * 2


def out_of_other_shape(self: nn.Module, x: Tensor) -> Tensor:
    y = torch.empty(0)
    torch.add(x, 1, out=y)  # break: GB0247
    return y * 2


def uniform_from(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    y.uniform_(**{"from": 0.0, "to": 1.0})  # break: GB0110
    return y * 2


def random_integers(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    y.random_(0, 10)  # break: GB0107
    return y * 2


def own_generator(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    generator = torch.Generator()  # break: GB0363
    return y + torch.rand(3, 4, generator=generator)  # break: GB0055


def seed_of_torch(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * torch.default_generator.initial_seed()  # break: GB7650


def threads_of_torch(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * torch.get_num_threads()  # break: GB0208


def inference_tensor(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (2 if y.is_inference() else 1)  # break: GB0045


def inference_mode_enabled(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (2 if torch.is_inference_mode_enabled() else 1)  # break: GB0046


def from_dlpack(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return torch.from_dlpack(y) * 2  # break: GB0007


# Gradients and parameters.


def input_requires_grad(self: nn.Module, x: Tensor) -> Tensor:
    x.requires_grad_()  # break: GB0125
    return x * 2


def input_requires_grad_set(self: nn.Module, x: Tensor) -> Tensor:
    x.requires_grad = True  # break: GB0206
    return x * 2


def made_with_requires_grad(self: nn.Module, x: Tensor) -> Tensor:
    weight = torch.ones(4, requires_grad=True)  # break: GB0225
    return (x * weight).detach()


def new_parameter(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * nn.Parameter(y.detach())  # break: GB0264


def gradient(self: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = (x * 2).requires_grad_()
        (found,) = torch.autograd.grad(y.sum(), y)  # break: GB9186
    return found * 2


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent


def function_with_jvp(self: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = Twice.apply(x.clone().requires_grad_())  # break: GB0144 GB8985
    return y.detach()


# Settings of the compiler inside of the model.


def switched_off_here(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    sine = torch.compiler.disable(torch.sin)  # break: GB0377
    return sine(y)  # break: GB0098


def frame_skipped(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.skip_frame()  # break: GB4297
    return y * 2


def step_unsupported(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.step_unsupported()  # break: GB0275
    return y * 2


# NumPy.


def object_array(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    a = y.numpy().astype(object)  # break: GB0250
    return y * len(a)  # break: GB0185


def unknown_to_torch(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y + torch.from_numpy(np.unwrap(y.numpy()))  # break: GB0294


def strides(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    a = y.numpy()
    return y * a.strides[0]  # break: GB4841


def flags(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    a = y.numpy()
    return y * int(a.flags.c_contiguous)  # break: GB0157


def bytes_of_array(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * len(y.numpy().tobytes())  # break: GB0158


# Python and its library.


def clock(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (time.time() > 0)  # break: GB9193


def slept(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    time.sleep(0)  # break: GB0007
    return y * 2


def random_choice(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * random.choice([2, 2])  # break: GB0007


def pickled(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * len(pickle.dumps({"a": 1}))  # break: GB0007


def collected(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    gc.collect()  # break: GB0007
    return y * 2


def own_frame(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (sys._getframe().f_lineno > 0)  # break: GB0007


def context_variable(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    LEVEL.set(2)  # break: GB6815
    return y * 2


LEVEL = contextvars.ContextVar("LEVEL", default=1)


def decimals(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * float(decimal.Decimal("2"))  # break: GB0147 GB9493


def redirected(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    with contextlib.redirect_stdout(io.StringIO()):  # break: GB0156 GB0262
        return y * 2


def opened(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    with open(os.devnull) as stream:  # noqa: PTH123  # break: GB0059 GB0142
        stream.read()
    return y * 2


def instruction_of_error(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    try:
        raise ValueError("expected")
    except ValueError as error:
        trace = error.__traceback__
        return y * (trace is not None and trace.tb_lasti)  # break: GB9625


def optional_import(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    try:
        import a_module_that_is_not_installed  # type: ignore[import-not-found]  # break: GB0069
    except ImportError:
        return y * 2
    return a_module_that_is_not_installed.double(y)


# Breaks inside of Python's library, and of Dynamo's own versions of its functions: they belong to
# the line that calls it.


def file_exists(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * os.path.exists(os.devnull)  # noqa: PTH110  # break: GB0007


def environment(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    os.environ["SET_BY_A_MODEL"] = "1"  # break: GB0007
    return y * 2


def from_json(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * json.loads("2")  # break: GB4818


def copied(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    copy.copy(self)  # break: GB0008
    return y * 2


def deeply_copied(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    copy.deepcopy(self)  # break: GB0116
    return y * 2


def filled_template(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * len(string.Template("$a").substitute(a="b"))  # break: GB0299 (GB0092)


def logger_made_here(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    logging.getLogger("compilewatch_tests").info("seen")  # break: GB6215 GB0291
    return y * 2


def random_name(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * len(str(uuid.uuid4()))  # break: GB0007 GB0088


def subprocess_started(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    subprocess.run(["true"], check=True)  # break: GB0007
    return y * 2


def called_from(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * (len(inspect.stack()) > 0)  # break: GB0007


def module_of(forward: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    """A class whose `forward` is the function itself, so that no call stands in between."""
    return type(forward.__name__, (nn.Module,), {"forward": forward})


def _is_kind(value: object) -> bool:
    return inspect.isfunction(value) and [*inspect.signature(value).parameters] == ["self", "x"]


KINDS: dict[str, Callable[..., Tensor]] = {
    name: value for name, value in list(globals().items()) if _is_kind(value)
}
"""The models' `forward`, by name."""


@functools.cache
def marked(name: str, *, second_reports: bool = False) -> frozenset[tuple[int, str]]:
    """The lines of a model that break, each with a code."""
    lines, start = inspect.getsourcelines(KINDS[name])
    pattern = r"GB\d+" if second_reports else r"(?<!\()GB\d+"
    return frozenset(
        (number, code)
        for number, line in enumerate(lines, start)
        for code in re.findall(pattern, line.partition("# break: ")[2])
    )
