"""Write tiedgpt/explore/tied.html, the article as one file.

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

from page.article import article_page
from page.figures import all_parts
from page.rounding import rounding_costs
from tying.runs import TEXT
from tying.trainer import name_of
from tying_experiment import REGISTERED, RUNS, read_lines

from tiedgpt.atomic import replaced_file
from tiedgpt.cli.inputs import read_text
from tiedgpt.errors import ArgumentError, TiedGPTError

ROOT = Path(__file__).parents[1]
EXPLORE = ROOT / "tiedgpt" / "explore"
PAGE = EXPLORE / "tied.html"
PICTURE = ROOT / "scripts" / "tied.png"
NOT_SHOWN = "nav, .lead, .try, .note, .average"  # in the picture
FIGURES = EXPLORE / "article" / "figures.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", metavar="TEXT", nargs="?", help="tinyshakespeare.txt")
    parser.add_argument("--picture", action="store_true", help="take scripts/tied.png too")
    args = parser.parse_args()
    try:
        make_page(args.text)
        if args.picture:
            take_picture(PICTURE)
    except (OSError, TiedGPTError) as error:
        parser.exit(2, f"make_page.py: error: {error}\n")


def make_page(text_file: str | None) -> None:
    """Write figures.json and the page."""
    rounding = rounding_of(text_file)
    figures = all_parts(read_lines(RUNS) | read_lines(REGISTERED))
    figures["texts"] |= rounding
    with replaced_file(FIGURES) as file:
        file.write(in_json(figures).encode())
    page = article_page().encode()
    with replaced_file(PAGE) as file:
        file.write(page)
    print(f"{PAGE.name}: {len(page):,} bytes")


def rounding_of(text_file: str | None) -> dict[str, str]:
    """What rounding the weights costs, measured on the text; without a text, as it was.

    Raises ArgumentError for another text than tinyshakespeare.txt.
    """
    if text_file is None:
        old_texts = json.loads(FIGURES.read_text(encoding="utf-8"))["texts"]
        return {name: old_texts[name] for name in ("rounding.tied", "rounding.untied")}
    text = read_text(text_file)
    if name_of(text) != TEXT:
        raise ArgumentError(
            f"{text_file}: expected tinyshakespeare.txt, whose SHA-256 begins with {TEXT}"
        )
    return rounding_costs(text)


def take_picture(path: Path) -> None:
    """The question and the three lists, in the size that other sites expect."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ArgumentError("--picture needs playwright: pip install -e .[browser]") from error
    chromium = shutil.which("chromium")
    if chromium is None:
        raise ArgumentError("--picture needs chromium: apt-get install chromium")

    with sync_playwright() as playwright:
        # With its sandbox, Chromium does not start as root.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        # 1.25 times these sizes: a picture of 1200 x 630 pixels
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
