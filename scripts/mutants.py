"""Known mistakes, put into a copy of the checkout one by one: each must make a named test fail.

    python -m scripts.mutants [WORD...]     only those whose file, change or reason contains a WORD

`tests/mutants.toml` lists them. A line of it that does not apply any more is an error as well: the
code has moved on, and so must the line. Exit status 1 unless every one of them is caught, 2 if no
line contains a WORD.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutants.toml"
TIMEOUT_SECONDS = 300.0

CAUGHT, SURVIVED, STALE, BROKEN = "caught", "SURVIVED", "DOES NOT APPLY", "COULD NOT BE TRIED"


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mistake: in `file`, which holds `old` exactly once, it stands as `new`.

    `tests` are arguments of pytest: the fewest that find it, at the lowest level.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    reason: str

    def concerns(self, words: Sequence[str]) -> bool:
        return not words or any(w in f"{self.file} {self.old} {self.reason}" for w in words)


class Mutants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mutant: tuple[Mutant, ...]


def listed() -> tuple[Mutant, ...]:
    """Read the list. Raises msgspec.ValidationError if a line is not a mutant."""
    return msgspec.convert(tomllib.loads(LIST.read_text(encoding="utf-8")), Mutants).mutant


def main(words: Sequence[str]) -> int:
    chosen = [mutant for mutant in listed() if mutant.concerns(words)]
    if not chosen:
        print(f"no line of {LIST.relative_to(ROOT)} contains {' or '.join(words)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="compilewatch-mutants-") as folder:
        copy = _copied(Path(folder) / "checkout")
        if complaint := _fails(copy, [t for mutant in chosen for t in mutant.tests]):
            print(f"these tests fail without any mistake:\n{complaint}")
            return 1
        tally: Counter[str] = Counter()
        for number, mutant in enumerate(chosen, 1):
            began = time.monotonic()
            outcome, detail = _tried(copy, mutant)
            tally[outcome] += 1
            spent = f"{time.monotonic() - began:.1f} s"
            print(
                f"{number:3} of {len(chosen)}  {outcome}  {mutant.file}: {mutant.reason}, {spent}"
            )
            if outcome != CAUGHT:
                print(f"{detail}\n", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in tally.items()))
    return 0 if set(tally) == {CAUGHT} else 1


def _copied(to: Path) -> Path:
    """The checkout as it is, changes that are not committed included, without ignored files."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def _tried(copy: Path, mutant: Mutant) -> tuple[str, str]:
    """What came of one mistake, and what there is to say about it."""
    path = copy / mutant.file
    if not path.is_file():
        return STALE, f"there is no {mutant.file}"
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return STALE, f"it holds this {text.count(mutant.old)} times, not once:\n{mutant.old}"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, output = _pytest(copy, mutant.tests)
    except subprocess.TimeoutExpired:
        return BROKEN, f"its tests did not end within {TIMEOUT_SECONDS:g} s"
    finally:
        path.write_text(text, encoding="utf-8")
    if status == 0 and " passed" not in output.splitlines()[-1]:
        return BROKEN, f"its tests were skipped:\n{output}"
    if status == 0:
        return SURVIVED, f"{mutant.old}\n->\n{mutant.new}\nby {' '.join(mutant.tests)}"
    # 1: tests failed. Any other status says that they did not run, which proves nothing.
    return (CAUGHT, "") if status == 1 else (BROKEN, output)


def _fails(copy: Path, tests: Sequence[str]) -> str:
    """What pytest says of tests that fail as things are; a failure then would prove nothing."""
    status, output = _pytest(copy, sorted(set(tests)), timeout_seconds=4 * TIMEOUT_SECONDS)
    return output if status else ""


def _pytest(
    copy: Path, tests: Sequence[str], timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[int, str]:
    # Bytecode is told apart by size and whole seconds, and a mistake may keep both.
    done = subprocess.run(
        [
            *(sys.executable, "-B", "-m", "pytest", "-x", "-q", "-rs", "-p", "no:cacheprovider"),
            *("--matrix", *tests),
        ],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    return done.returncode, done.stdout[-4000:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
