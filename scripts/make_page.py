"""Write scripts/tied.html, the article as one file.

    python scripts/make_page.py
    python scripts/make_page.py tinyshakespeare.txt
    python scripts/make_page.py --picture

The sources are in tiedgpt/explore/article/. The script computes figures.json anew, from the
shipped models, the counts of their text, and the runs of scripts/tying_results/; it needs
`pip install -e .[tying]`. With the text itself, it also measures what the rounding of the weights
costs, which takes a minute; without it, that figure stays as it is. --picture also writes
scripts/tied.png, the first part of the page, which other sites show beside a link; it needs the
extra `browser` and Debian's chromium.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from page.figures import all_parts
from page.rounding import rounding_costs
from tying_experiment import RUNS, read_lines

from tiedgpt.explore.article import article_page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "scripts" / "tied.html"
NOT_SHOWN = "nav, .lead, .try, .note, .average"  # in the picture
FIGURES = ROOT / "tiedgpt" / "explore" / "article" / "figures.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, nargs="?", help="tinyshakespeare.txt")
    parser.add_argument("--picture", action="store_true", help="take scripts/tied.png too")
    args = parser.parse_args()
    figures = all_parts(read_lines(RUNS))
    if args.text is not None:
        rounding = rounding_costs(args.text.read_text(encoding="utf-8"))
    else:
        old_texts = json.loads(FIGURES.read_text(encoding="utf-8"))["texts"]
        rounding = {name: old_texts[name] for name in ("rounding.tied", "rounding.untied")}
    figures["texts"] |= rounding
    FIGURES.write_text(in_json(figures), encoding="utf-8")
    PAGE.write_bytes(article_page().encode())
    print(f"{PAGE.name}: {PAGE.stat().st_size:,} bytes")
    if args.picture:
        take_picture(PAGE.with_suffix(".png"))


def take_picture(path: Path) -> None:
    """The question and the three lists, in the size that other sites expect."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # With its sandbox, Chromium does not start as root.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": 960, "height": 504}, device_scale_factor=1.25, color_scheme="light"
        )
        page.goto(PAGE.as_uri())
        page.wait_for_selector("body[data-ready]")
        page.evaluate(f"for (const e of document.querySelectorAll('{NOT_SHOWN}')) e.hidden = true")
        page.screenshot(path=path)
        browser.close()


def in_json(figures: dict[str, Any]) -> str:
    """A line for each part, and for each text."""
    texts = json.dumps(figures.pop("texts"), ensure_ascii=False, indent=0)
    parts = [f'"texts": {texts}']
    for name, part in figures.items():
        parts.append(f'"{name}": {json.dumps(part, ensure_ascii=False, separators=(",", ":"))}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
