"""What tests of all packages need: a hermetic session, groups of tests, environments, the matrix.

Nothing of whoever runs the tests reaches them, and nothing of theirs stays behind: variables that
change what compilewatch does are removed, the user's cache folder is a temporary one in which the
user's environments can be found, and the current folder is a temporary one.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from compilewatch.config import cache_folder
from compilewatch.environments import STAMP_FILE, Environments
from compilewatch.environments.creation import Tool

ROOT = Path(__file__).parents[1]

MADE = {
    "xla": "compilewatch env create xla",
    "lowering": "compilewatch env create lowering",
    "torch_2_13": "compilewatch env create torch-2.13 --torch 2.13.0",
    "transformers_5_5": "compilewatch env create transformers-5.5.4 --transformers 5.5.4",
    "torch_2_13_transformers_5_5": (
        "compilewatch env create torch-2.13.0-transformers-5.5.4 --torch 2.13.0"
        " --transformers 5.5.4"
    ),
    "vision": "compilewatch env create vision",
    "libraries": "compilewatch env create libraries",
    "monitor": "compilewatch monitor (its first call installs Streamlit)",
}
"""Marker -> the command that makes the environment that its tests need."""

OF_OTHER_ENVIRONMENTS = MADE.keys() - {"monitor"}
"""Markers of tests that need an environment which `make setup-dev` does not make."""

OF_RAY = {"ray_cluster", "bare_ray", "warm_ray"}
"""Fixtures of tests that start Ray's daemons."""

GROUPS = (
    "integration/extras/cluster",
    "integration/cli",
    "integration/launchers",
    "integration/extras/profiles/cli/test_infer.py",
    "integration/test_layers.py",
    "integration/jenkins/test_stages.py",
    "integration/extras/papers/test_planted.py",
    "integration/extras/papers/test_other_targets.py",
    "integration/extras/profiles/cli/test_train.py",
    "integration/extras/profiles/cli/test_train_inductor.py",
    "integration/worker/device",
    "integration/worker/targets/test_xla.py",
    "integration/worker/targets/test_inductor.py",
    "integration/worker/targets/dynamo/test_target.py",
    "integration/jenkins/test_setup.py",
    "integration/jenkins/test_jenkinsfile.py",
    "integration/sources/transformers",
    "integration/environments",
    "integration/extras/monitor",
    "integration/extras/papers/test_execution.py",
    "integration/extras/profiles/test_profiler.py",
)
"""Files and folders below tests/, the longest first: each is run by one worker of pytest-xdist,
from beginning to end, so that its fixtures are built once. All other files are groups of their own.
"""

WARM = (
    "integration/cli",
    "integration/extras/gate/test_command.py",
    "integration/extras/cluster",
    "integration/extras/profiles/cli",
    "integration/launchers",
    "integration/test_layers.py",
    "integration/worker/device",
    "integration/worker/process/test_warmup.py",
    "integration/worker/test_variants.py",
)
"""Files and folders below tests/ that use the warm servers (`tests/warm.py`): they are one group,
so that each of these servers is started once and not in each worker of pytest-xdist. With the
matrix they take longer than all others, and are groups as the others are.
"""

FOREIGN = ("COMPILEWATCH_", "AWS_", "HF_TOKEN", "HF_ENDPOINT", "RAY_ADDRESS")
"""Beginnings of variables that change what compilewatch does; proxies are removed, too."""

KNOWN = {".pytest_cache", ".mypy_cache", ".ruff_cache", "__pycache__", ".hypothesis"}
"""Folders that may appear in the checkout while tests run; so may the files of coverage."""


MEMORY = Path("/dev/shm")
"""Where pytest makes its temporary folders, if there is room: the store waits for the disk at each
write, thousands of times in a run of the tests."""

ROOM_BYTES = 4 * 2**30
"""What must be free there; folders of tests that passed are removed at once (`pyproject.toml`)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        action="store_true",
        help="also run the long lists of models (marker `matrix`), and the tests of Ray and of "
        "other environments, as `make test-all` does",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The same examples each time, and nothing written; others where there is time for the matrix.
    hypothesis.settings.register_profile(
        "tests", deadline=None, database=None, derandomize=not config.getoption("--matrix")
    )
    hypothesis.settings.load_profile("tests")
    # A shell that starts `make test &` hands on an ignored SIGINT, which tests send to processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return  # The process that started this one has done the rest, for both.
    if _has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    folder = Path(tempfile.mkdtemp(prefix="compilewatch-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    _offer_cache(config, cache_folder(), folder / "compilewatch")
    config.stash[LEFT_BEHIND] = LeftBehind()
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ["XDG_CACHE_HOME"] = str(folder)


def _has_room(memory: Path) -> bool:
    """Whether there is such a file system, with space, in which programs can be run."""
    try:
        found = os.statvfs(memory)
    except OSError:
        return False
    free = found.f_bavail * found.f_frsize
    return free > ROOM_BYTES and not found.f_flag & os.ST_NOEXEC and os.access(memory, os.W_OK)


def _offer_cache(config: pytest.Config, users: Path, ours: Path) -> None:
    """A cache folder with the user's environments and tools, and the scans of earlier tests."""
    (ours / "environments").mkdir(parents=True)
    (users / "npm").mkdir(parents=True, exist_ok=True)  # Tools are installed once, and kept.
    (users / "npm-groovy-lint").mkdir(exist_ok=True)
    (users / "wheels").mkdir(exist_ok=True)
    for name in ("npm", "npm-groovy-lint", "wheels"):
        (ours / name).symlink_to(users / name)
    for made in (users / "environments").glob(f"*/{STAMP_FILE}"):
        (ours / "environments" / made.parent.name).symlink_to(made.parent)
    if (users / "tools").is_dir():
        (ours / "tools").symlink_to(users / "tools")
    kept = getattr(config, "cache", None)
    if kept is None:
        return
    scans = kept.mkdir("transformers-scans")
    installed = f"library-{metadata.version('transformers')}-*.json"  # not the doubles of tests
    for scan in scans.glob(installed):
        shutil.copy(scan, ours)

    def keep() -> None:
        for scan in ours.glob(installed):
            shutil.copy(scan, scans)

    config.add_cleanup(keep)


def _is_there(marker: str) -> bool:
    if marker == "monitor":
        return Tool("monitor").is_ready()
    return Environments().read_stamp(MADE[marker].split()[3]) is not None


def _is_of_the_matrix(item: pytest.Item) -> bool:
    """Whether only `make test-all` runs a test: it takes long, or is for few users."""
    marked = any(item.get_closest_marker(m) for m in ("matrix", *OF_OTHER_ENVIRONMENTS))
    given = set(getattr(item, "fixturenames", ()))
    of_ray = "ray" in getattr(getattr(item, "callspec", None), "params", {}).values()
    return marked or of_ray or not OF_RAY.isdisjoint(given)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the matrix out, and skip what needs an environment that is not there."""
    if not config.getoption("--matrix"):
        long = [item for item in items if _is_of_the_matrix(item)]
        config.hook.pytest_deselected(items=long)
        left_out = set(long)
        items[:] = [item for item in items if item not in left_out]
    for marker, command in MADE.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if not marked or _is_there(marker):
            continue
        if os.environ.get("CI"):
            raise pytest.UsageError(f"{len(marked)} tests need an environment: {command}")
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs an environment: {command}"))
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, whole groups; `loadgroup` of 3.8 does nothing under pytest 9.2."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0], config)

    return Scheduling(config, log)


def _group(path: str, config: pytest.Config) -> str:
    """The longest name in GROUPS that the path begins with, or the path itself; `warm` for WARM."""
    inside = path.removeprefix("tests/") + "/"
    if not config.getoption("--matrix") and inside.startswith(tuple(f"{w}/" for w in WARM)):
        return "warm"
    return max((g for g in GROUPS if inside.startswith(f"{g}/")), key=len, default=path)


def _rank(item: pytest.Item) -> int:
    group = _group(item.path.relative_to(ROOT).as_posix(), item.config)
    if group == "warm":
        return -1
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


class LeftBehind:
    """What lies in the checkout and in the user's cache now, and what came to it since.

    The cache is looked at in CI only: on a developer's machine a sweep may run meanwhile.
    """

    def __init__(self) -> None:
        self._cache = cache_folder()
        self._before = self._now()

    def found(self) -> list[str]:
        return sorted(path for path, when in self._now().items() if self._before.get(path) != when)

    def _now(self) -> dict[str, int]:
        """Path -> its time in the cache, and 0 in the checkout, whose files may be edited."""
        found: dict[str, int] = {}
        for place in (self._cache, self._cache / "environments"):
            if os.environ.get("CI") and place.is_dir():
                found |= {
                    str(p): 0 if p.is_dir() else p.stat().st_mtime_ns for p in place.iterdir()
                }
        command = ["git", "status", "--porcelain", "--ignored=matching", "--untracked-files=all"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            path = Path(line[3:].strip('"'))
            known = KNOWN & set(path.parts) or path.name.startswith(".coverage")
            if line[:2] in ("??", "!!") and not known:
                found[str(ROOT / path)] = 0
        return found


LEFT_BEHIND = pytest.StashKey[LeftBehind]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests that leave files in the checkout or in the user's cache have failed."""
    before = session.config.stash.get(LEFT_BEHIND, None)
    if before is not None and before.found() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left := config.stash[LEFT_BEHIND].found():
        terminalreporter.section("files that the tests left behind", red=True)
        terminalreporter.line("(or that another program made in the meantime)")
        for path in left:
            terminalreporter.line(path)


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test writes into its current folder does not land in the checkout."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def xla_python() -> str:
    """The interpreter of the environment xla, for tests that have its marker."""
    return Environments().interpreter("xla").path
