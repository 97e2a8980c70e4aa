"""The page in a browser at three widths: what is above the fold, what is legible, what is reached.

Skipped where there is no Chromium. With RAYBIAS_AXE naming axe.min.js (npm's axe-core), that
must find nothing.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from raybias.report.page import write_report
from support.report_outs import make_study, write_out

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
WIDTHS = (1280, 768, 400)
STYLE = Path(__file__).parents[2] / "raybias" / "report" / "style.html.j2"
HARNESS = """<!doctype html><body><script>
const axe = AXE, found = {};
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width, height: 800, srcdoc: PAGE});
  document.body.append(frame);
  frame.addEventListener("load", async () => {
    const page = frame.contentDocument, box = (node) => node.getBoundingClientRect();
    const first = page.querySelector("figure svg.forest"), seen = (node) => box(node).width > 0;
    const scale = (svg) => svg.viewBox.baseVal ? box(svg).width / svg.viewBox.baseVal.width : 1;
    found[width] = {
      verdict: box(page.querySelector(".headline")).bottom, figure: box(first).top,
      bars: box(first).bottom, beyond: page.documentElement.scrollWidth - width,
      text: Math.min(...[...page.querySelectorAll("svg text, figure span, table *")].filter(seen)
        .map((node) => parseFloat(getComputedStyle(node).fontSize)
          * (node.ownerSVGElement ? scale(node.ownerSVGElement) : 1))),
      cut: [...page.querySelectorAll("figcaption, .caption, summary")].filter(
        (node) => seen(node) && box(node).right > width).length,
      contents: [...page.querySelectorAll("nav a")].filter(seen).length,
      unreached: [...page.querySelectorAll(".wide")].filter(
        (node) => node.scrollWidth > node.clientWidth && node.tabIndex < 0).length,
    };
    const table = page.querySelector("[aria-labelledby=gaps] table");
    const button = table.querySelector("th button");
    button.click();
    found[width].sorted = button.parentElement.ariaSort;
    found[width].rows = [...table.tBodies[0].rows].map(
      (row) => row.cells[0].textContent);
    if (axe) {
      frame.contentWindow.eval(axe);
      found[width].axe = (await frame.contentWindow.axe.run(page)).violations.map((one) => one.id);
    }
    document.title = JSON.stringify(found);
  });
}
</script>"""


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH")
def test_the_page_reads_at_three_widths(tmp_path: Path) -> None:
    study = make_study()
    store = write_out(tmp_path / "out", study)
    write_report(store, study)
    # The policy would keep the checks out too.
    page = re.sub(r"<meta http-equiv[^>]*>", "", store.read_text("report.html"))
    axe = os.environ.get("RAYBIAS_AXE")
    script = Path(axe).read_text("utf-8") if axe else ""
    filled = {"AXE": script, "WIDTHS": WIDTHS, "PAGE": page}
    text = HARNESS
    for name, value in filled.items():
        text = text.replace(name, json.dumps(value).replace("</", "<\\/"), 1)
    (tmp_path / "harness.html").write_text(text, "utf-8")
    shown = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--virtual-time-budget=20000", (tmp_path / "harness.html").as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    said = re.search(r"<title>(.*?)</title>", shown, re.DOTALL)
    assert said
    found = json.loads(html.unescape(said[1]))
    assert set(found) == {str(width) for width in WIDTHS}
    for width, laid in found.items():
        assert laid["verdict"] < laid["figure"] < 800
        assert laid["bars"] < (800 if int(width) > 400 else 1300)
        assert laid["beyond"] <= 0
        assert laid["text"] >= 8.5
        assert laid["cut"] == laid["unreached"] == 0
        assert laid["sorted"] == "ascending"
        assert laid["rows"] == sorted(laid["rows"])
        assert laid.get("axe", []) == []
    assert found["1280"]["contents"] > 6


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_in_light_and_dark() -> None:
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", part))
               for part in STYLE.read_text("utf-8").split(":root")[1:3]]  # fmt: skip
    light, dark = schemes[0], {**schemes[0], **schemes[1]}
    for scheme in (light, dark):
        for ground in (scheme["paper"], scheme["panel"]):
            for text in ("ink", "faint", "link", "pass", "fail"):
                assert contrast(scheme[text], ground) >= 4.5
            for series in ("#0077bb", scheme["series"], scheme["truth"]):
                assert contrast(series, ground) >= 3
