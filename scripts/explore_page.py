"""Take the README's picture of the page of `tiedgpt explore`, and measure how quickly the page
answers.

    python scripts/explore_page.py --picture scripts/explore.png
    python scripts/explore_page.py --latency                       # the two shipped models
    python scripts/explore_page.py --latency --size 124M           # a random model of GPT-2's size
    python scripts/explore_page.py --latency --size 124M --busy    # while another process uses every core

Needs the extra `browser` (pip install -e '.[browser]') and Debian's chromium (apt-get install
chromium). A latency is the time in the browser from an event to the change of the page that it
causes, the median of --repeats. The time of a panel's own request is that from the request to the
drawn panel. Each prompt is new, so no result is a cached one. Random models are written to a
temporary directory and removed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import tiedgpt
from tiedgpt.explore.views import LENS_TOKENS
from tiedgpt.gpt2.tokenizer import Tokenizer

# Set the value of an input, and wait until a panel is drawn with the answer. Returns the
# milliseconds since the input's event, and since the start of the panel's own request.
CHANGE = """async ([selector, value, watched, view]) => {
    const input = document.querySelector(selector), target = document.querySelector(watched);
    const changed = new Promise(done => new MutationObserver((_, o) => { o.disconnect(); done(); })
        .observe(target, { childList: true, subtree: true, characterData: true }));
    performance.clearResourceTimings();
    const began = performance.now();
    input.value = value; input.dispatchEvent(new Event("input", { bubbles: true }));
    await changed; await new Promise(requestAnimationFrame);
    const drawn = performance.now();
    const request = () => performance.getEntriesByType("resource").findLast(r => r.name.endsWith("/" + view));
    while (!request()) await new Promise(go => setTimeout(go, 1));
    return [drawn - began, drawn - request().startTime]; }"""
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
            print(
                "peak memory of the server:",
                *(f"{int(line.split()[1]) / 1000:.0f} MB" for line in lines),
            )
    finally:
        process.terminate()
        process.wait()


def random_model(size: str, directory: str) -> str:
    """Write a random model of a known size, tied, with bytes as its tokens; the rest of V has no
    text."""
    from tiedgpt.checkpoints.known_models import known_config

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
    """The top of the page with the shipped models: the drawing and its switch."""
    size = {"width": 1280, "height": 800}
    with serving() as url, browser_page(url, viewport=size, color_scheme="light") as page:
        page.wait_for_selector("#matrices td.on")
        page.wait_for_timeout(500)
        page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def measure(models: list[str], repeats: int, busy: bool) -> None:
    """Print the median and the longest time of each interaction."""
    with ExitStack() as stack:
        url = stack.enter_context(serving(*models))
        page = stack.enter_context(browser_page(url, viewport={"width": 1300, "height": 900}))
        page.wait_for_selector("#repair td", timeout=120_000)  # the four paths have been measured
        for _ in range(os.cpu_count() or 1) if busy else ():
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        began: list[Any] = []  # requests
        running: set[Any] = set()
        page.on("request", lambda request: began.append(request))
        page.on("request", lambda request: running.add(request))
        page.on("requestfinished", lambda request: running.discard(request))
        page.on("requestfailed", lambda request: running.discard(request))
        prompts = iter(f"{number:03} abcdef" for number in range(1000))  # 10 tokens

        def report(what: str, taken: Sequence[float]) -> None:
            print(
                f"{what:36} {statistics.median(taken):7.0f} ms   longest {max(taken):7.0f} ms",
                flush=True,
            )

        def settled() -> None:
            """Wait until no request has been under way for 200 ms, so that all panels in view are
            drawn."""
            while True:
                before = len(began)
                page.wait_for_timeout(200)
                if len(began) == before and not running:
                    return

        def changes(
            selector: str, values: Iterator[Any], watched: str, view: str
        ) -> list[tuple[float, ...]]:
            """The times since the events, and those since the requests. The first two changes warm
            up."""
            taken: list[list[float]] = []
            for value in islice(values, repeats + 2):
                taken.append(page.evaluate(CHANGE, [selector, value, watched, view]))
                settled()
            return list(zip(*taken[2:], strict=True))

        report("slider to bars", changes("#temperature", count(0.5, 0.05), "#bars", "next")[0])
        report("typing to bars", changes("#prompt", prompts, "#bars", "next")[0])
        report(
            "first token of a text", [page.evaluate(FIRST_TOKEN) for _ in range(repeats + 2)][2:]
        )
        panels = {"lens": "#lensbox", "attention": "#heads", "parts": "#partsbox"}
        names = {"lens": f"lens of {LENS_TOKENS} positions"}
        for panel, watched in panels.items():
            page.evaluate("panel => document.getElementById(panel).scrollIntoView()", panel)
            page.wait_for_selector(f"{watched} td, {watched} button", timeout=120_000)
            settled()
            # The page draws the bars, waits up to 120 ms in case more is typed, and draws the
            # panels in view in their order.
            whole, own = changes("#prompt", prompts, watched, panel)
            report(f"typing to {panel}", whole)
            report(f"{names.get(panel, panel)} (its own request)", own)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the picture, a PNG")
    parser.add_argument("--latency", action="store_true", help="measure")
    parser.add_argument(
        "--size", help="of a random model: 124M, 355M, ... (default: the shipped models)"
    )
    parser.add_argument("--repeats", type=int, default=20, help="default: %(default)s")
    parser.add_argument(
        "--busy", action="store_true", help="measure while other processes use every core"
    )
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
