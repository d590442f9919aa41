"""`python -P …/worker/bootstrap.py MODULE ARGUMENT…` runs a module of this package.

Another environment does not have compilewatch installed. With the parent folder of this package on
`sys.path`, the environment would also see everything else that is installed there, including
another torch. Therefore only the package is loaded, from its file.
"""

import runpy
import sys
from importlib import util
from pathlib import Path


def load_package() -> None:
    """Let `import compilewatch` import the package that this file belongs to."""
    folder = Path(__file__).resolve().parents[2]
    spec = util.spec_from_file_location(
        "compilewatch", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = util.module_from_spec(spec)
    sys.modules["compilewatch"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_package()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
