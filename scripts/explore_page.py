"""Take the README's picture of the laboratory of `tiedgpt explore`.

    python scripts/explore_page.py scripts/explore.png

Needs the extra `browser` (pip install -e '.[browser]') and Debian's chromium (apt-get install
chromium).
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PATIENCE = 120_000  # ms, for the first answers on a slow machine


def take_picture(url: str, path: Path) -> None:
    """Write a picture of the top of the laboratory: the drawing, its switch."""
    with sync_playwright() as playwright:
        # With its sandbox, Chromium does not start as root.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(url)
        page.wait_for_selector("body[data-ready]", timeout=PATIENCE)
        page.wait_for_selector("#matrices td.on")  # a cell of the scores is chosen
        page.wait_for_timeout(500)  # ms, in which the other panels are drawn
        page.screenshot(path=path)
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, metavar="FILE", help="a PNG")
    args = parser.parse_args()
    command = [sys.executable, "-m", "tiedgpt", "explore", "-q", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()  # "" if it did not start; it says why on stderr
        try:
            if url:
                take_picture(f"{url}lab", args.picture)
        finally:
            server.terminate()
    return 0 if url else 1


if __name__ == "__main__":
    sys.exit(main())
