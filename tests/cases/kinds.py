"""One small model for each further kind of graph break that a few lines of own code can meet.

`breaks.py` beside this file pins all that Dynamo does to a module; here only places and codes are
pinned. A line that ends with `# break: CODE …` breaks with these codes of PyTorch's registry, in
the first two calls; no other line of a model does. A code in parentheses is a second report of the
same break: torch could not cut there, and gave the frame up. `plain_kinds.py` asks torch alone, and
the tests hold the marks to it.
"""

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
import linecache
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
from torch.nested import nested_tensor

SEEN: set[Any] = {torch.ones(1)}


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


LEVEL = contextvars.ContextVar("LEVEL", default=1)


class Kinds(nn.Module):
    """The methods are models. Where Python's own library breaks, it is the line that calls it."""

    def while_values_allow(self, x: Tensor) -> Tensor:
        y = x + 1
        while y.sum() < 100:  # break: GB0170
            y = y * 2
        return y

    def asserted(self, x: Tensor) -> Tensor:
        y = x + 1
        assert (y > 0).all(), f"negative: {y}"  # break: GB0170
        return y * 2

    def grouped_tensors(self, x: Tensor) -> Tensor:
        y = x + 1
        keys = [key for key, _ in itertools.groupby([y.sum(), y.sum()])]  # break: GB0152 GB9493
        return y * len(keys)

    def in_a_set(self, x: Tensor) -> Tensor:
        y = x + 1
        SEEN.add(y)  # break: GB0222
        return y * 2

    def slept(self, x: Tensor) -> Tensor:
        y = x + 1
        time.sleep(0)  # break: GB0007
        return y * 2

    def logger_made_here(self, x: Tensor) -> Tensor:
        y = x + 1
        logging.getLogger("compilewatch_tests").info("seen")  # break: GB6215 GB0291
        return y * 2

    def made_with_requires_grad(self, x: Tensor) -> Tensor:
        weight = torch.ones(4, requires_grad=True)  # break: GB0225
        return (x * weight).detach()

    def other_data(self, x: Tensor) -> Tensor:
        y = x + 1
        x.data = y.double()  # break: GB0220
        return x * 2

    def own_data(self, x: Tensor) -> Tensor:
        y = x + 1
        y.data = y.data * 2  # break: GB0056
        return y

    def own_generator(self, x: Tensor) -> Tensor:
        y = x + 1
        generator = torch.Generator()  # break: GB0363
        return y + torch.rand(3, 4, generator=generator)  # break: GB0055

    def input_requires_grad_set(self, x: Tensor) -> Tensor:
        x.requires_grad = True  # break: GB0206
        return x * 2

    def gradient(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = (x * 2).requires_grad_()
            (found,) = torch.autograd.grad(y.sum(), y)  # break: GB9186
        return found * 2

    def function_with_jvp(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = Twice.apply(x.clone().requires_grad_())  # break: GB0144 GB8985
        return y.detach()

    def switched_off_here(self, x: Tensor) -> Tensor:
        y = x + 1
        sine = torch.compiler.disable(torch.sin)  # break: GB0377
        return sine(y)  # break: GB0098

    def frame_skipped(self, x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.skip_frame()  # break: GB4297
        return y * 2

    def step_unsupported(self, x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.step_unsupported()  # break: GB0275
        return y * 2

    def object_array(self, x: Tensor) -> Tensor:
        y = x + 1
        a = y.numpy().astype(object)  # break: GB0250
        return y * len(a)  # break: GB0185

    def redirected(self, x: Tensor) -> Tensor:
        y = x + 1
        with contextlib.redirect_stdout(io.StringIO()):  # break: GB0156 GB0262
            return y * 2

    def opened(self, x: Tensor) -> Tensor:
        y = x + 1
        with open(os.devnull) as stream:  # noqa: PTH123  # break: GB0059 GB0142
            stream.read()
        return y * 2

    def instruction_of_error(self, x: Tensor) -> Tensor:
        y = x + 1
        try:
            raise ValueError("expected")
        except ValueError as error:
            trace = error.__traceback__
            return y * (trace is not None and trace.tb_lasti)  # break: GB9625

    def optional_import(self, x: Tensor) -> Tensor:
        y = x + 1
        try:
            import a_module_that_is_not_installed  # type: ignore[import-not-found]  # break: GB0069
        except ImportError:
            return y * 2
        return a_module_that_is_not_installed.double(y)

    def environment(self, x: Tensor) -> Tensor:
        y = x + 1
        os.environ["SET_BY_A_MODEL"] = "1"  # break: GB0007
        return y * 2


Forward = Callable[[Any, Tensor], Tensor]

EXPRESSIONS: dict[str, Forward] = {
    "to_list": lambda _, x: (y := x + 1) * len(y.tolist()),  # break: GB0109
    "index_of": lambda _, x: x * operator.index((x + 1).long().sum()),  # break: GB0124
    "one_hot": lambda _, x: nn.functional.one_hot(x.long()) * 2,  # break: GB0246
    "sorted_tensors": lambda _, x: (y := x + 1) * sorted([y.sum(), y.mean()])[0],  # break: GB0207
    "resized": lambda _, x: (x + 1).resize_(2, 2) * 2,  # break: GB0126
    "resized_as": lambda _, x: (x + 1).resize_as_(x[:1]) * 2,  # break: GB0127
    "shared_memory": lambda _, x: (x + 1).share_memory_() * 2,  # break: GB4197
    "out_not_contiguous": lambda _, x: (
        torch.add(x, 1, out=torch.empty(4, 3).t()) * 2  # break: GB0242
    ),
    "out_of_other_shape": lambda _, x: torch.add(x, 1, out=torch.empty(0)) * 2,  # break: GB0247
    "uniform_from": lambda _, x: (
        (x + 1).uniform_(**{"from": 0.0, "to": 1.0}) * 2  # break: GB0110
    ),
    "random_integers": lambda _, x: (x + 1).random_(0, 10) * 2,  # break: GB0107
    "input_requires_grad": lambda _, x: x.requires_grad_() * 2,  # break: GB0125
    "strides": lambda _, x: (y := x + 1) * y.numpy().strides[0],  # break: GB4841
    "flags": lambda _, x: (y := x + 1) * int(y.numpy().flags.c_contiguous),  # break: GB0157
    "collected": lambda _, x: (x + 1) * (gc.collect() >= 0),  # break: GB0007
    "context_variable": lambda _, x: ((x + 1) * 2, LEVEL.set(2))[0],  # break: GB6815
    "copied": lambda self, x: ((x + 1) * 2, copy.copy(self))[0],  # break: GB0008
    "deeply_copied": lambda self, x: ((x + 1) * 2, copy.deepcopy(self))[0],  # break: GB0116
    "subprocess_started": lambda _, x: (x + 1) * subprocess.call(["true"]),  # break: GB0007
    "as_float": lambda _, x: (y := x + 1) * float(y.sum()),  # break: GB0124
    "any_of_rows": lambda _, x: (
        (y := x + 1) * any(row.sum() > 0 for row in y)  # break: GB0170 (GB8335)
    ),
    "equal": lambda _, x: y * 2 if torch.equal(y := x + 1, x) else y,  # break: GB0033
    "root_of": lambda _, x: (y := x + 1) * math.sqrt(y.sum()),  # break: GB0033
    "unique": lambda _, x: torch.unique(x + 1) * 2,  # break: GB0036
    "formatted": lambda _, x: (y := x + 1) * len(f"{y.sum():.2f}"),  # break: GB0088
    "written_out": lambda _, x: (y := x + 1) * len(repr(y)),  # break: GB0569
    "identity": lambda _, x: (y := x + 1) * (id(y) > 0),  # break: GB9316 (GB4501)
    "lists_compared": lambda _, x: (y := x + 1) * ([y.sum()] < [y.mean()]),  # break: GB6622
    "largest_by_key": lambda _, x: (
        (y := x + 1) * max([1, 2], key=lambda factor: y[0, 0] * factor)  # break: GB5687
    ),
    "data_pointer": lambda _, x: (y := x + 1) * (y.data_ptr() != 0),  # break: GB5976
    "storage_size": lambda _, x: (y := x + 1) * y.untyped_storage().nbytes(),  # break: GB0156
    "sparse": lambda _, x: (x + 1).to_sparse().to_dense() * 2,  # break: GB0277 GB0015
    "nested": lambda _, x: nested_tensor([x + 1, x]).to_padded_tensor(0),  # break: GB0090 GB0016
    "seed_of_torch": lambda _, x: (x + 1) * torch.default_generator.initial_seed(),  # break: GB7650
    "threads_of_torch": lambda _, x: (x + 1) * torch.get_num_threads(),  # break: GB0208
    "inference_tensor": lambda _, x: (y := x + 1) * (2 if y.is_inference() else 1),  # break: GB0045
    "inference_mode_enabled": lambda _, x: (
        (x + 1) * (2 if torch.is_inference_mode_enabled() else 1)  # break: GB0046
    ),
    "from_dlpack": lambda _, x: torch.from_dlpack(x + 1) * 2,  # break: GB0007
    "new_parameter": lambda _, x: (y := x + 1) * nn.Parameter(y.detach()),  # break: GB0264
    "unknown_to_torch": lambda _, x: (
        (y := x + 1) + torch.from_numpy(np.unwrap(y.numpy()))  # break: GB0294
    ),
    "bytes_of_array": lambda _, x: (y := x + 1) * len(y.numpy().tobytes()),  # break: GB0158
    "clock": lambda _, x: (x + 1) * (time.time() > 0),  # break: GB9193
    "random_choice": lambda _, x: (x + 1) * random.choice([2, 2]),  # break: GB0007
    "pickled": lambda _, x: (x + 1) * len(pickle.dumps({"a": 1})),  # break: GB0007
    "own_frame": lambda _, x: (x + 1) * (sys._getframe().f_lineno > 0),  # break: GB0007
    "decimals": lambda _, x: (x + 1) * float(decimal.Decimal("2")),  # break: GB0147 GB9493
    "file_exists": lambda _, x: (x + 1) * os.path.exists(os.devnull),  # noqa: PTH110  # break: GB0007
    "from_json": lambda _, x: (x + 1) * json.loads("2"),  # break: GB4818
    "filled_template": lambda _, x: (
        (x + 1) * len(string.Template("$a").substitute(a="b"))  # break: GB0299 (GB0092)
    ),
    "random_name": lambda _, x: (x + 1) * len(str(uuid.uuid4())),  # break: GB0007 GB0088
    "called_from": lambda _, x: (x + 1) * (len(inspect.stack()) > 0),  # break: GB0007
}

KINDS: dict[str, Forward] = {n: f for n, f in vars(Kinds).items() if inspect.isfunction(f)}
"""The models' `forward`, by name."""

for name, function in EXPRESSIONS.items():
    function.__code__ = function.__code__.replace(co_name=name)
    KINDS[name] = function


def module_of(forward: Forward) -> Callable[[], nn.Module]:
    """A class whose `forward` is the function itself, so that no call stands in between."""
    return type(forward.__name__, (nn.Module,), {"forward": forward})


@functools.cache
def marked(name: str, *, second_reports: bool = False) -> frozenset[tuple[int, str]]:
    """The lines of a model that break, each with a code."""
    code = KINDS[name].__code__
    pattern = r"GB\d+" if second_reports else r"(?<!\()GB\d+"
    return frozenset(
        (number, found)
        for number in {line for *_, line in code.co_lines() if line}
        for found in re.findall(
            pattern, linecache.getline(code.co_filename, number).partition("# break: ")[2]
        )
    )
