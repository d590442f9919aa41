"""The script that Streamlit runs: `streamlit run src/compilewatch/monitor/__main__.py -- OUTPUTS`.

Streamlit's environment has neither compilewatch nor torch. The package is loaded from its file, as
in `worker/process/bootstrap.py`.
"""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path

import streamlit


def load_package() -> None:
    """Let `import compilewatch` import the package that this file belongs to."""
    if "compilewatch" in sys.modules:
        return
    folder = Path(__file__).resolve().parents[1]
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
    from compilewatch.monitor.page import show
    from compilewatch.monitor.view import Monitor

    streamlit.set_page_config(page_title="compilewatch", layout="wide")
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")
    # One view for all visitors and refreshes, because it remembers what it has read.
    show(streamlit, streamlit.cache_resource(Monitor, show_spinner=False)(root))
