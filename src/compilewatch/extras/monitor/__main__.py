"""The script that Streamlit runs: `streamlit run …/extras/monitor/__main__.py -- OUTPUTS`.

Streamlit's environment has neither compilewatch nor torch: `worker/process/bootstrap.py` loads the
package from its files, and then runs Streamlit in the same process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit

from compilewatch.extras.monitor.page import show
from compilewatch.extras.monitor.view import Monitor

if __name__ == "__main__":
    streamlit.set_page_config(page_title="compilewatch", layout="wide")
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")
    # One view for all visitors and refreshes, because it remembers what it has read.
    show(streamlit, streamlit.cache_resource(Monitor, show_spinner=False)(root))
