"""The report in a real headless Chromium, served under the policy that Jenkins sends."""

import functools
import http.server
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests import example_run, services
from tests.serving import serving

pytestmark = pytest.mark.browser

# hudson.model.DirectoryBrowserSupport, DEFAULT_CSP_VALUE.
JENKINS_POLICY = "sandbox; default-src 'none'; img-src 'self'; style-src 'self';"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PAGES = (
    *("index.html", "changes.html", "reasons/GB0170.html", "targets.html"),
    *("models/BertModel.html", "models/team--odd-name--x---.html"),
)
PLACES_WITH_TEXT = "h1, h2, p, td, th, dt, dd, small, a, li, pre, .badge, .count, .muted, .notes li"

# WCAG 2.2's relative luminance and contrast ratio, of each element's text on what is behind it.
CONTRASTS = """
(selector) => {
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = rgb => {
    const [r, g, b] = rgb.map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length === 3) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll(selector)]
    .filter(element => element.innerText.trim() && element.offsetParent)
    .map(element => {
      const text = luminance(parse(getComputedStyle(element).color));
      const back = luminance(behind(element));
      const ratio = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
      return [ratio, `<${element.tagName} ${element.className}> ${element.innerText}`];
    });
}
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", JENKINS_POLICY)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run")
    example_run.write_report(example_run.view(*example_run.row()), folder)
    handler = functools.partial(Handler, directory=str(folder))
    with serving(handler) as url:
        yield f"{url}/report"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = services.program("chromium", package="chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of the size and colour scheme that the test names."""
    size, scheme = request.param
    context = browser.new_context(viewport=size, color_scheme=scheme)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param((DESK, "light"), id="desk"),
        pytest.param((PHONE, "dark"), id="phone", marks=pytest.mark.matrix),
    ],
    indirect=True,
)
def test_pages_keep_the_policy_fit_and_have_the_contrast_that_wcag_asks_for(
    page: Any, address: str
) -> None:
    """Half a minute: only a browser applies the policy, the style sheet and the layout."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("response", lambda r: complaints.append(r.url) if r.status >= 400 else None)
    width = page.viewport_size["width"]
    for path in PAGES:
        response = page.goto(f"{address}/{path}")
        assert response.headers["content-security-policy"] == JENKINS_POLICY
        found = page.evaluate(CONTRASTS, PLACES_WITH_TEXT)
        assert len(found) > 20, path
        assert [what for ratio, what in found if ratio < 4.5] == [], path
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
    # The browser asks for an icon by itself; a run's folder has none.
    assert [c for c in complaints if "favicon" not in c] == []
    page.goto(f"{address}/index.html")
    assert page.evaluate("document.styleSheets.length") == 1
    widths = page.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert widths == ([560, 560] if width == DESK["width"] else [350, 350])
    # The first tab stop skips to the content.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0


def test_pages_and_charts_follow_the_colour_scheme_under_the_policy(
    browser: Any, address: str
) -> None:
    """The style sheet inside an SVG file is its own; Chromium applies it in an `<img>`."""
    shots: dict[str, bytes] = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=DESK, color_scheme=scheme)
        page = context.new_page()
        page.goto(f"{address}/index.html")
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in colour[4:-1].split(",")) / 3
        assert (brightness < 60) if scheme == "dark" else (brightness > 230), colour
        # On one background, only the picture itself can still differ.
        page.evaluate("document.body.style.background = 'rgb(128, 128, 128)'")
        shots[scheme] = page.locator("img").first.screenshot()
        context.close()
    assert shots["light"] != shots["dark"]
