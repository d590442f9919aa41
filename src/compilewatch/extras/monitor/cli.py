"""`compilewatch monitor`: the local web page over the folder of outputs."""

import importlib.util
import os
import socket
import sys
from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.cli.progress import spinner
from compilewatch.config import Settings, load_settings
from compilewatch.environments.creation import Tool, run_tool
from compilewatch.errors import UsageError

HOST = "127.0.0.1"
DEFAULT_PORT = 8501

TOOL = "monitor"

VARIABLES = {
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
    "STREAMLIT_SERVER_ADDRESS": HOST,
    "STREAMLIT_SERVER_SHOW_EMAIL_PROMPT": "false",
    "STREAMLIT_SERVER_FILE_WATCHER_TYPE": "none",
    "STREAMLIT_SERVER_ENABLE_STATIC_SERVING": "false",
    "STREAMLIT_CLIENT_TOOLBAR_MODE": "minimal",
    "STREAMLIT_CLIENT_SHOW_ERROR_DETAILS": "none",
    "STREAMLIT_LOGGER_LEVEL": "warning",
    "STREAMLIT_LOGGER_HIDE_WELCOME_MESSAGE": "true",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Settings of Streamlit: only this machine sees the page, and nothing is sent anywhere."""


@click.command("monitor")
@options.output
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help=f"The port of {HOST}.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(*, output_dir: str | None, port: int, no_browser: bool) -> int:
    """Serve a page about the runs and profiles in outputs/, on this machine only.

    Tabs: Overview, Timing, Memory, Artifacts. A running sweep and a training that runs under the
    profiler are followed live. Unless the extra `monitor` is installed, the first call installs
    Streamlit into a separate environment in the user's cache folder (about 470 MB); nothing is
    sent to other hosts. Ctrl-C ends it.
    """
    settings = load_settings({"output_dir": output_dir})
    _check_port(port)
    python = _python(settings)
    root = Path(settings.output_dir).absolute()
    click.echo(f"http://{HOST}:{port} shows {root}; Ctrl-C ends it", err=True)
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    opens = not no_browser and any(map(os.environ.get, displays))
    variables = VARIABLES | {"STREAMLIT_SERVER_HEADLESS": "false" if opens else "true"}
    script = Path(__file__).with_name("page.py")
    arguments = ["run", str(script), "--server.port", str(port), "--", str(root)]
    status = run_tool(python, "streamlit", arguments, variables)
    return 0 if status == 0 else 2


def _python(settings: Settings) -> Path:
    """The interpreter with Streamlit: this one (the extra `monitor`), or that of its own."""
    if importlib.util.find_spec("streamlit") is not None:
        return Path(sys.executable)
    tool = Tool(TOOL, settings.cache_folder)
    if not tool.is_ready():
        with spinner("installing Streamlit (about 470 MB, once)"):
            tool.create()
    return tool.python


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror}): choose another one with --port"
            ) from None
