"""What the fixture `compile_check` gives to a test."""

import contextlib
import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.api.check import CheckResult, check
from compilewatch.api.publish import stored_fix_for
from compilewatch.config import load_settings
from compilewatch.errors import CompilewatchError, UsageError, did_you_mean
from compilewatch.extras.gate import judgement
from compilewatch.extras.gate.command import check_named
from compilewatch.extras.gate.judgement import RULES
from compilewatch.extras.gate.own_code import source_folders
from compilewatch.extras.gate.plugin import PROPERTY, REPORTS, UPDATE
from compilewatch.extras.gate.session import failure
from compilewatch.records import Mode, Result
from compilewatch.store import Store

KEYWORDS = (*RULES, "kwargs", "calls", "mode", "backend", "dynamic", "vary")
"""Those of a call; all others are the model's."""


class CompileCheck:
    """Checks models in one test; a call fails the test as the rules say."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node = request.node
        self._config = request.config
        self._reports: list[judgement.CheckReport] = []

    def __call__(
        self,
        model: Callable[..., Any] | str,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        calls: Iterable[Any] | None = None,
        mode: str = "eval",
        backend: str = "eager",
        dynamic: bool | Mapping[str, Sequence[int]] | None = None,
        vary: Mapping[str, Any] | None = None,
        own: str | Iterable[str] | None = None,
        third_party: str | None = None,
        recompilations: int | None = None,
        captured_share: float | None = None,
        fullgraph: bool | None = None,
        numerics: bool | None = None,
        compilations: int | None = None,
        **keywords: Any,
    ) -> CheckResult:
        """Check a model as `compilewatch.check` does, and fail for what the rules do not accept.

        `own` names packages whose breaks count like those of the repository; `third_party="fail"`
        also fails for breaks elsewhere. `recompilations` is how many are accepted,
        `captured_share` the smallest share of operators in graphs (0 to 1), and `fullgraph=True`
        wants `torch.compile(fullgraph=True)` to accept the model. `numerics=True` wants the
        compiled model to compute what eager mode does. `compilations` is how many graphs are
        accepted, for all calls. A keyword wins over the marker
        `compilewatch`, and that over `[tool.compilewatch]` of pyproject.toml.

        `vary={"x": {0: (1, 64)}}` also calls the model with such sizes of its argument `x`, and
        `dynamic={"x": [0]}` fails if the model specialises that dimension, so that another size
        compiles again (see `compilewatch.check`).

        A model by name (`"mypkg.net:build"`) is built in a separate process, with example inputs.
        """
        kwargs, option = {**keywords, **(kwargs or {})}, self._config.getoption
        arguments = (own, third_party, recompilations, captured_share, fullgraph, numerics)
        try:
            marker = _marked(self._node.get_closest_marker("compilewatch"))
            vary = marker.pop("vary", None) if vary is None else vary
            rules, _, known = judgement.opened(
                self._config.rootpath,
                marker,
                dict(zip(RULES, (*arguments, compilations), strict=True)),
                baseline=option("--compilewatch-baseline"),
            )
            kept = isinstance(dynamic, Mapping)
            flag = None if isinstance(dynamic, Mapping) else dynamic
            if isinstance(model, str) and not (args or kwargs or calls or vary or kept):
                checked, code = _named(model, rules, mode=mode, backend=backend, dynamic=flag)
            else:
                code = code_files(model)
                checked = check(
                    model,
                    *args,
                    calls=calls,
                    mode=mode,
                    backend=backend,
                    dynamic=dynamic,
                    vary=vary,
                    numerics=rules.numerics,
                    kwargs=kwargs,
                )
        except CompilewatchError as error:
            raise pytest.fail.Exception(f"compilewatch: {error}", pytrace=False) from None
        nodeid = self._node.nodeid
        command = f"pytest {shlex.quote(nodeid)}"
        report = judgement.judge(
            checked, known, rules, name=nodeid, command=command, code=code, kept=kept
        )
        report = msgspec.structs.replace(
            report, problems=(*report.problems, *_misspelled(report, kwargs))
        )
        self._keep(report)
        if report.failed and (report.problems or not option(UPDATE)):
            fix: Iterable[str] = ()
            if report.of("new"):
                fix = fix_lines(model, checked.result, rules.root, mode=mode, dynamic=flag)
            verbose = option("verbose") > 0
            pytest.fail(failure(report, update=UPDATE, verbose=verbose, fix=fix), pytrace=False)
        return checked

    def _keep(self, report: judgement.CheckReport) -> None:
        """Add a report to the test, from which the session collects it; JUnit gets the counts."""
        self._reports.append(report)
        self._node.stash[REPORTS] = msgspec.json.encode(self._reports).decode()
        counts = {
            "checks": len(self._reports),
            "new": sum(len(check.of("new")) for check in self._reports),
            "known": sum(len(check.of("known", "moved")) for check in self._reports),
            "third_party": sum(len(check.of("elsewhere")) for check in self._reports),
            "recompilations": sum(check.recompilations for check in self._reports),
        }
        properties = self._node.user_properties
        properties[:] = [pair for pair in properties if not pair[0].startswith(PROPERTY)]
        properties += [(f"{PROPERTY}{name}", count) for name, count in counts.items()]


def code_files(model: Any) -> tuple[str, ...] | None:
    """Return the files that define a model: its modules' classes and hooks, or its function.

    None if they cannot be known, as of a function that was typed.
    """
    files: dict[str, None] = {}
    modules = list(model.modules()) if hasattr(model, "modules") else [model]
    for module in modules:
        hooks = [*getattr(module, "_forward_hooks", {}).values()]
        hooks += [*getattr(module, "_forward_pre_hooks", {}).values()]
        for part in (module, getattr(module, "forward", None), *hooks):
            while isinstance(part, functools.partial):
                part = part.func
            part = inspect.unwrap(part) if callable(part) else part
            code = getattr(part, "__code__", None)
            owners = [] if code is not None else type(part).__mro__
            names = [code.co_filename] if code is not None else []
            names += [
                getattr(sys.modules.get(o.__module__), "__file__", None) or "" for o in owners
            ]
            files |= dict.fromkeys(name for name in names if name and Path(name).is_file())
    return tuple(files) or None


def _named(
    model: str, rules: judgement.Rules, *, mode: str, backend: str, dynamic: bool | None
) -> tuple[CheckResult, tuple[str, ...] | None]:
    """Check a model by name, which is built in a separate process. Raises UsageError."""
    if mode not in set(Mode):
        raise UsageError(f"mode is 'eval' or 'train', not {mode!r}")
    (_, checked, code), *others = check_named(
        rules.root,
        [model],
        mode=Mode(mode),
        backend=backend,
        dynamic=dynamic,
        numerics=rules.numerics,
        jobs=1,
    )
    if others:
        raise UsageError(f"{model} has several components: name one of them")
    return checked, code


def _misspelled(report: judgement.CheckReport, kwargs: Iterable[str]) -> Iterator[str]:
    """Yield a line for each keyword that the model does not take and the fixture has nearly."""
    for name in kwargs:
        refused = any(
            f"unexpected keyword argument {name!r}" in problem for problem in report.problems
        )
        if refused and (hint := did_you_mean(name, KEYWORDS)):
            yield f"compile_check has no keyword {name!r}{hint}"


def _marked(marker: pytest.Mark | None) -> dict[str, Any]:
    """Return the rules of a marker. Raises UsageError for one that does not exist."""
    if marker is None:
        return {}
    for name in marker.kwargs:
        if name not in (names := (*RULES, "vary")):
            raise UsageError(f"the marker compilewatch has no {name!r}{did_you_mean(name, names)}")
    if marker.args:
        raise UsageError("the marker compilewatch takes keywords, such as recompilations=1")
    return dict(marker.kwargs)


def fix_lines(
    model: object, result: Result, root: Path, *, mode: str, dynamic: bool | None
) -> Iterator[str]:
    """Yield a stored fix of the same graph breaks, or the command that searches for one.

    An object cannot be built anew in another process, and is not searched.
    """
    fix = None
    with contextlib.suppress(CompilewatchError):
        fix = stored_fix_for(Store(Path(load_settings({}).output_dir)), result)
    if fix is not None:
        yield f"fix:        {' and '.join(fix.changes)}"
        where = f"{fix.model} in run {fix.run}"
        yield f"    verified for {where}, for the same graph break, and not for this model"
        yield from (f"    {line}".rstrip() for line in fix.code.splitlines())
    elif isinstance(model, str):
        words = ["compilewatch", "fix", model]
        if ":" in model or model.endswith(".py"):
            folders = [folder for folder in source_folders(root) if folder.is_dir()]
            words += [word for folder in folders for word in ("--python-path", str(folder))]
        if mode != Mode.EVAL:
            words += ["--mode", mode]
        if dynamic is not None:
            words.append("--dynamic" if dynamic else "--static")
        yield f"fix:        {shlex.join(words)}"
