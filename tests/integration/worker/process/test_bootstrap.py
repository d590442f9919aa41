"""A worker of these very sources, in an interpreter that has no compilewatch."""

import subprocess
import sys
from pathlib import Path

import compilewatch
from compilewatch.environments import Interpreter, worker_command

PROGRAM = """
import sys
from pathlib import Path
import compilewatch.contract.failures as failures
print(compilewatch.__file__)
print(failures.relative_file(failures.__file__))
print(sys.argv)
print([p for p in sys.path if (Path(p) / "torch").exists() or (Path(p) / "compilewatch").exists()])
"""


def test_the_package_alone_is_shown_to_a_foreign_interpreter(tmp_path: Path) -> None:
    """A copy of the package, so that what it finds is not what is installed here."""
    source = Path(compilewatch.__file__).parent
    copy = tmp_path / "elsewhere" / "compilewatch"
    for name in ("__init__.py", "worker/process/bootstrap.py", "contract/failures.py"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((source / name).read_bytes())
    (copy / "records.py").write_text("class ErrorRecord: ...\n")
    (copy / "errors.py").write_text("class CompilewatchError(Exception): ...\n")
    (copy / "worker" / "process" / "probe.py").write_text("import compilewatch\n" + PROGRAM)
    command = worker_command(Interpreter(executable=sys.executable), "probe", "one", "two")
    command[2] = str(copy / "worker" / "process" / "bootstrap.py")
    # -I -S: no site-packages, so no compilewatch of its own.
    command[1:2] = ["-I", "-S"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        str(copy / "__init__.py"),
        "compilewatch/contract/failures.py",
        f"['{copy / 'worker' / 'process' / 'probe.py'}', 'one', 'two']",
        "[]",
    ]
