"""Take the README's picture of the page of `tiedgpt explore`, and measure how quickly the page answers.

    python scripts/explore_page.py --picture scripts/explore.png
    python scripts/explore_page.py --latency                       # the two shipped models
    python scripts/explore_page.py --latency --size 124M           # a random model of GPT-2's size
    python scripts/explore_page.py --latency --size 124M --busy    # while another process uses every core

Needs the extra `browser` (pip install -e '.[browser]') and Debian's chromium (apt-get install chromium). A
latency is the time in the browser from an event to the change of the page that it causes, the median of
--repeats. Each prompt is new, so no result is a cached one. Random models are written to a temporary
directory and removed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tiedgpt
from tiedgpt.tokenizer import Tokenizer

PICTURE = {"width": 1280, "height": 800}
# Each returns milliseconds: set a value, dispatch its event, and wait for the element to change.
CHANGE = """async ([selector, value, event, watched]) => {
    const input = document.querySelector(selector), target = document.querySelector(watched);
    const changed = new Promise(done => new MutationObserver((_, o) => { o.disconnect(); done(); })
        .observe(target, { childList: true, subtree: true, characterData: true }));
    const began = performance.now();
    if (event === "click") input.click();
    else { input.value = value; input.dispatchEvent(new Event(event, { bubbles: true })); }
    await changed; await new Promise(requestAnimationFrame);
    return performance.now() - began; }"""
FIRST_TOKEN = """async () => {
    const began = performance.now();
    document.querySelector("#write").click();
    while (!document.querySelector("#written .w")) await new Promise(go => setTimeout(go, 1));
    const ms = performance.now() - began;
    document.querySelector("#write").click();
    const stopping = () => document.querySelector("#write").textContent === "Stop";
    while (stopping()) await new Promise(go => setTimeout(go, 5));
    return ms; }"""


@contextmanager
def serving(*models: str) -> Iterator[str]:
    """The address of `tiedgpt explore` in another process, which is stopped at the end."""
    command = [sys.executable, "-m", "tiedgpt", "explore", "-q", "--no-browser", *models]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not (url := process.stdout.readline().strip()):
            raise SystemExit("explore_page.py: error: tiedgpt explore did not start; see above")
        yield url
        peak = Path(f"/proc/{process.pid}/status")
        if peak.is_file():
            lines = [line for line in peak.read_text().splitlines() if line.startswith("VmHWM")]
            print("peak memory of the server:", *(f"{int(line.split()[1]) / 1000:.0f} MB" for line in lines))
    finally:
        process.terminate()
        process.wait()


@contextmanager
def busy_cores() -> Iterator[None]:
    """Another process that computes on every core."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def random_model(size: str, directory: str) -> str:
    """Write a random model of a known size, tied, with bytes as its tokens; the rest of V has no text."""
    from tiedgpt.checkpoints.names import known_config

    config = known_config(size)
    if config is None:
        raise SystemExit(f"explore_page.py: error: no size {size!r}; for example 124M")
    tiedgpt.save_model(tiedgpt.GPT2.random(config), Tokenizer([], special_tokens={}), directory)
    return directory


@contextmanager
def browser_page(url: str, **options: Any) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(**options)
        page.goto(url)
        page.wait_for_selector("body[data-ready]", timeout=120_000)
        yield page
        browser.close()


def take_picture(path: Path) -> None:
    """The top of the page with the shipped models, after they have written."""
    with serving() as url, browser_page(url, viewport=PICTURE, color_scheme="light") as page:
        page.click("#write")
        page.wait_for_selector("body[data-written='40,40']")
        page.fill("#top_p", "0.9")  # draws again, with the time of a warm server
        page.wait_for_timeout(500)
        page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def measure(models: list[str], repeats: int, busy: bool) -> None:
    """Print the median and the longest time of each interaction."""
    with ExitStack() as stack:
        url = stack.enter_context(serving(*models))
        page = stack.enter_context(browser_page(url, viewport={"width": 1300, "height": 900}))
        if busy:
            stack.enter_context(busy_cores())
        began: list[Any] = []  # requests
        running: set[Any] = set()
        page.on("request", lambda request: began.append(request))
        page.on("request", lambda request: running.add(request))
        page.on("requestfinished", lambda request: running.discard(request))
        page.on("requestfailed", lambda request: running.discard(request))
        prompts = iter(f"{number:03} abcd" for number in range(1000))  # 8 bytes

        def times(what: str, one: Any) -> None:
            taken = [one(n) for n in range(repeats + 2)][2:]
            print(f"{what:28} {statistics.median(taken):7.0f} ms   longest {max(taken):7.0f} ms", flush=True)

        def settled() -> None:
            """Wait until no request has been under way for 200 ms, so that all panels in view are drawn."""
            while True:
                count = len(began)
                page.wait_for_timeout(200)
                if len(began) == count and not running:
                    return

        def change(selector: str, value: Any, event: str, watched: str) -> float:
            taken = page.evaluate(CHANGE, [selector, value, event, watched])
            settled()
            return float(taken)

        times("slider", lambda n: change("#temperature", 0.5 + n / 20, "input", "#bars"))
        times("typing to bars", lambda n: change("#prompt", next(prompts), "input", "#bars"))
        times("first token of a text", lambda n: page.evaluate(FIRST_TOKEN))
        for panel, watched in {"lens": "#lensbox", "attention": "#heads", "parts": "#partsbox"}.items():
            page.evaluate("panel => document.getElementById(panel).scrollIntoView()", panel)
            page.wait_for_selector(f"{watched} td, {watched} button", timeout=120_000)
            settled()
            # The bars are drawn before these panels, and the page waits for a pause in the typing of up to
            # 120 ms. This is part of the time.
            times(f"typing to {panel}", lambda n, at=watched: change("#prompt", next(prompts), "input", at))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the picture, a PNG")
    parser.add_argument("--latency", action="store_true", help="measure")
    parser.add_argument("--size", help="of a random model: 124M, 355M, ... (default: the shipped models)")
    parser.add_argument("--repeats", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--busy", action="store_true", help="measure while other processes use every core")
    args = parser.parse_args()
    if not (args.picture or args.latency):
        parser.error("expected --picture or --latency")
    if args.picture:
        take_picture(args.picture)
    if args.latency:
        with tempfile.TemporaryDirectory() as directory:
            models = [random_model(args.size, f"{directory}/model")] if args.size else []
            measure(models, args.repeats, args.busy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
