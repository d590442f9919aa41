"""Takes the pictures of docs/dashboards.md: each dashboard of a running Grafana, in Chromium.

    .venv/bin/python -m scripts.dashboard_pictures http://127.0.0.1:3000
    .venv/bin/python -m scripts.dashboard_pictures URL --only overview --width 1280 --theme light

Each page is opened as high as its panels are, and its picture is written to docs/images/ as
dashboard-NAME.webp. The script prints a line for each page, and below it what a reader would miss:
panels that could not load, text that is cut off, other hosts that the page asked, and complaints of
the browser. The password is GRAFANA_PASSWORD, or the one that scripts/stack_setup.sh created.

Exit status: 0 done; 1 a panel could not load, or a page asked another host.
"""

import argparse
import base64
import io
import os
import shutil
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from scripts.verify_stack.grafana import Grafana

ROOT = Path(__file__).parents[1]
PASSWORD = ROOT / "stack" / "secrets" / "grafana_admin_password"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
ROW_PIXELS, MARGIN_PIXELS = 38, 120
"""Of Grafana's grid, and of the controls and the space around them."""
LOAD_MILLISECONDS = 60_000
DRAW_MILLISECONDS = 1500
"""Grafana draws charts after the last response, without an event that says so."""
QUALITY = 70

CUT_OFF = """
() => [...document.querySelectorAll('section *, [role="gridcell"]')]
  .filter(one => one.innerText && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
  .filter(one => one.getAttribute('role') === 'gridcell'
    || getComputedStyle(one).textOverflow === 'ellipsis')
  .map(one => one.innerText.trim().split('\\n')[0])
  .filter(Boolean)
"""
"""Words of which only a part is visible: cells, headers, titles and names of bars."""

LOADED = """
() => !document.querySelector('[aria-label="Panel loading bar"]')
  && !/Cancel/.test(
    document.querySelector('[data-testid="data-testid RefreshPicker run button"]')?.innerText || '')
"""

FAILED = """
() => [...document.querySelectorAll('[data-testid="data-testid Panel status error"]')]
  .map(one => one.closest('section')?.querySelector('h2')?.innerText || 'a panel')
"""


def password() -> str:
    """The one of the environment, or the one that scripts/stack_setup.sh created."""
    return os.environ.get("GRAFANA_PASSWORD") or PASSWORD.read_text()


def heights(grafana: Grafana) -> Iterator[tuple[str, int]]:
    """Uid and height in pixels of each dashboard of compilewatch."""
    for uid, dashboard in grafana.dashboards().items():
        if uid.startswith("compilewatch-"):
            rows = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in dashboard["panels"])
            yield uid, rows * ROW_PIXELS + MARGIN_PIXELS


def taken(
    browser: Browser, grafana: Grafana, uid: str, height: int, given: argparse.Namespace
) -> tuple[bytes, list[str], bool]:
    """The picture of a dashboard as PNG, what a reader would miss, and whether it is at fault."""
    token = base64.b64encode(f"admin:{password()}".encode()).decode()
    page = browser.new_context(
        viewport={"width": given.width, "height": height},
        color_scheme=given.theme,
        extra_http_headers={"Authorization": f"Basic {token}"},
        timezone_id="UTC",
    ).new_page()
    hosts: set[str] = set()
    complaints: list[str] = []
    page.on("request", lambda request: hosts.add(urllib.parse.urlsplit(request.url).netloc))
    page.on(
        "console",
        lambda said: complaints.append(said.text[:160]) if said.type == "error" else None,
    )
    asked = [("kiosk", "true"), ("theme", given.theme)]
    for one in given.set:  # NAME=VALUE, as in an address without its `var-`
        name, _, value = one.partition("=")
        asked.append((name if name in ("from", "to") else f"var-{name}", value))
    page.set_default_timeout(LOAD_MILLISECONDS)
    page.goto(f"{grafana.url}/d/{uid}?{urllib.parse.urlencode(asked)}")
    page.wait_for_selector("[data-testid^='data-testid Panel header']")
    page.wait_for_load_state("networkidle")
    page.wait_for_function(LOADED)
    page.wait_for_timeout(DRAW_MILLISECONDS)
    failed = page.evaluate(FAILED)
    foreign = sorted(hosts - {urllib.parse.urlsplit(grafana.url).netloc, ""})
    said = [
        *(f"could not load: {title}" for title in failed),
        *(f"asked another host: {host}" for host in foreign),
        *(f"cut off: {text}" for text in sorted(set(page.evaluate(CUT_OFF)))),
        *(f"complaint: {text}" for text in dict.fromkeys(complaints)),
    ]
    picture = page.screenshot(animations="disabled")
    page.context.close()
    return picture, said, bool(failed or foreign)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pictures of the dashboards of a Grafana.")
    parser.add_argument("grafana", help="its address, for instance http://127.0.0.1:3000")
    parser.add_argument("--only", default="", help="names, separated by commas: overview,model")
    parser.add_argument("--width", type=int, default=1680)
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--label", default="", help="added to the names of the files")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a variable, from or to"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    grafana = Grafana(given.grafana, password())
    label = given.label and f"-{given.label}"
    wanted = set(filter(None, given.only.split(",")))
    fault = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        for uid, height in heights(grafana):
            name = uid.removeprefix("compilewatch-")
            if wanted and name not in wanted:
                continue
            picture, said, wrong = taken(browser, grafana, uid, height, given)
            path = given.folder / f"dashboard-{name}{label}.webp"
            with Image.open(io.BytesIO(picture)) as image:  # a third of the PNG
                image.convert("RGB").save(path, "WEBP", quality=QUALITY, method=6)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
            for line in said:
                print(f"  {line}")
            fault = fault or wrong
    return int(fault)


if __name__ == "__main__":
    sys.exit(main())
