"""The page as a browser lays it out. Needs a Chromium on this machine: Debian's chromium or chromium-headless-shell will do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.contents import EVIL, content, many_rows
from tests.report.test_evidence_page import mirror_file, page_of, partition, report

from shallow_mirror.report.page import page

pytestmark = pytest.mark.thorough

_NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
_MEASURE = """<script>
const seen = {wide: document.documentElement.scrollWidth > innerWidth, background: getComputedStyle(document.body).backgroundColor,
  color: getComputedStyle(document.body).color, outside: [], empty: 0, overlapping: []};
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect();
  if (box.width < 300 || box.height < 60) seen.empty += 1;
  for (const text of svg.querySelectorAll("text")) {
    const own = text.getBoundingClientRect();
    if (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1)
      seen.outside.push(text.textContent);
  }
  const below = [...svg.querySelectorAll("text")].filter((one) => one.getAttribute("text-anchor") !== "end")
    .map((one) => one.getBoundingClientRect()).sort((a, b) => a.left - b.left);
  for (let i = 1; i < below.length; i++)
    if (below[i].left < below[i - 1].right && Math.abs(below[i].top - below[i - 1].top) < 2) seen.overlapping.push(i);
}
document.documentElement.innerHTML = "<pre>" + JSON.stringify(seen) + "</pre>";
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    browser = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(_NAMES)})")
    return browser


def _run(browser: str, *options: str, dark: bool, width: int = 1000) -> subprocess.CompletedProcess[str]:
    """Without a network: no name is resolved."""
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--window-size={width},3400", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr", *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def _layout(browser: str, folder: Path, text: str, *, dark: bool, width: int) -> dict[str, Any]:
    path = folder / "measured.html"
    path.write_text(text.replace("</main>", f"</main>{_MEASURE}"), encoding="utf-8")
    ended = _run(browser, "--dump-dom", path.as_uri(), dark=dark, width=width)
    assert "CONSOLE" not in ended.stderr, ended.stderr
    (layout_json,) = re.findall(r"<pre>(.*?)</pre>", ended.stdout, re.DOTALL)
    return dict(json.loads(unescape(layout_json)))


def _brightness(color: str) -> float:
    return float(np.mean([int(channel) for channel in re.findall(r"\d+", color)[:3]]))


@pytest.mark.parametrize(("count", "dark", "width"), [(0, True, 1000), (1, False, 1000), (20_000, True, 1000), (300, False, 420)])
def test_every_plot_has_room_no_text_is_cut_or_covered_and_both_colour_schemes_can_be_read(
    browser: str, tmp_path: Path, count: int, dark: bool, width: int
) -> None:
    text = page(content(many_rows(count), name=f"orders {EVIL}", transactions=min(count, 500)))
    layout = _layout(browser, tmp_path, text, dark=dark, width=width)
    assert (layout["wide"], layout["empty"], layout["outside"], layout["overlapping"]) == (False, 0, [], [])
    paper, ink = _brightness(layout["background"]), _brightness(layout["color"])
    assert (paper < 60 and ink > 180) if dark else (paper > 220 and ink < 80)


@pytest.mark.parametrize("width", [1000, 420])
def test_the_page_of_a_verification_fits_into_the_window(browser: str, tmp_path: Path, width: int) -> None:
    verified = report(
        partitions=tuple(partition(number, f"a-topic-with-a-name-as-long-as-they-are-{number}") for number in range(30)),
        uncovered=("orders" * 40,),
    )
    layout = _layout(browser, tmp_path, page_of(mirror_file(tmp_path), verified), dark=False, width=width)
    assert layout["wide"] is False


def test_a_screenshot_shows_plots_in_more_than_one_colour(browser: str, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page(content(many_rows(200), transactions=200)), encoding="utf-8")
    _run(browser, f"--screenshot={tmp_path / 'shot.png'}", (tmp_path / "report.html").as_uri(), dark=False)
    from matplotlib import image  # takes half a second of every collection otherwise

    shot = image.imread(tmp_path / "shot.png")[:, :, :3].reshape(-1, 3)
    for wanted in ((0x25, 0x63, 0xB8), (0xD9, 0x7A, 0x16), (0xC3, 0x37, 0x2C)):
        assert (np.abs(shot - np.array(wanted) / 255).max(axis=1) < 0.02).sum() > 100
