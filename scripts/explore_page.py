"""Take the README's picture of the page of `tiedgpt explore`, and measure how quickly it answers.

    python scripts/explore_page.py --picture scripts/explore.png
    python scripts/explore_page.py --latency                       # the two shipped models
    python scripts/explore_page.py --latency --size 124M           # a random model of GPT-2's size
    python scripts/explore_page.py --latency --size 124M --busy    # while others use every core

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import tiedgpt
from tiedgpt.checkpoints.places import known_config
from tiedgpt.explore.views.lens import LENS_TOKENS
from tiedgpt.gpt2.tokenizer import Tokenizer

WARM_UP = 2  # changes that are not measured
PATIENCE = 120_000  # ms, for what a large model takes at its first answer

# Set the value of an input, and wait until a panel is drawn with the answer. Returns the
# milliseconds since the input's event, and since the start of the panel's own request.
CHANGE = """async ([selector, value, watched, view]) => {
    const input = document.querySelector(selector);
    const target = document.querySelector(watched);
    const changed = new Promise(done => {
        const observer = new MutationObserver(() => {
            observer.disconnect();
            done();
        });
        observer.observe(target, {childList: true, subtree: true, characterData: true});
    });
    performance.clearResourceTimings();
    const began = performance.now();
    input.value = value;
    input.dispatchEvent(new Event("input", {bubbles: true}));
    await changed;
    await new Promise(requestAnimationFrame);
    const drawn = performance.now();

    const isOfView = entry => entry.name.endsWith("/" + view);
    const request = () => performance.getEntriesByType("resource").findLast(isOfView);
    while (!request()) await new Promise(go => setTimeout(go, 1));
    return [drawn - began, drawn - request().startTime];
}"""
FIRST_TOKEN = """async () => {
    const began = performance.now();
    document.querySelector("#write").click();
    while (!document.querySelector("#written .w")) await new Promise(go => setTimeout(go, 1));
    const ms = performance.now() - began;

    document.querySelector("#write").click();
    const isStopping = () => document.querySelector("#write").textContent === "Stop";
    while (isStopping()) await new Promise(go => setTimeout(go, 5));
    return ms;
}"""


@contextmanager
def serving(*models: str) -> Iterator[str]:
    """The address of `tiedgpt explore` in another process, which is stopped at the end."""
    command = [sys.executable, "-m", "tiedgpt", "explore", "-q", "--no-browser", *models]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit("explore_page.py: error: tiedgpt explore did not start; see above")
        yield url
        print_peak_memory(process.pid)
    finally:
        process.terminate()
        process.wait()


def print_peak_memory(pid: int) -> None:
    """Print the most memory that a process has used, on systems that tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.is_file():
        return
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM"):  # "VmHWM: 123456 kB"
            _, kilobytes, _ = line.split()
            print(f"peak memory of the server: {int(kilobytes) / 1000:.0f} MB")


def random_model(size: str, directory: str) -> str:
    """Write a random tied model of a known size. Its tokens are bytes; other ids have no text."""
    config = known_config(size)
    if config is None:
        raise SystemExit(f"explore_page.py: error: no size {size!r}; for example 124M")
    tiedgpt.save_model(tiedgpt.GPT2.random(config), Tokenizer([], special_tokens={}), directory)
    return directory


@contextmanager
def browser_page(url: str, **options: Any) -> Iterator[Any]:
    """The page in Chromium, when it is drawn."""
    from playwright.sync_api import sync_playwright  # of the extra

    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        # With its sandbox, Chromium does not start as root.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(**options)
        page.goto(url)
        page.wait_for_selector("body[data-ready]", timeout=PATIENCE)
        yield page
        browser.close()


@contextmanager
def busy_cores() -> Iterator[None]:
    """Processes that use every core."""
    processes = []
    try:
        for _ in range(os.cpu_count() or 1):
            processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def take_picture(path: Path) -> None:
    """Write a picture of the top of the page with the shipped models: the drawing, its switch."""
    size = {"width": 1280, "height": 800}
    with serving() as url, browser_page(url, viewport=size, color_scheme="light") as page:
        page.wait_for_selector("#matrices td.on")  # a cell of the scores is chosen
        page.wait_for_timeout(500)  # milliseconds, in which the other panels are drawn
        page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


@dataclass
class Latencies:
    """In milliseconds, one for each change."""

    since_event: list[float]
    since_request: list[float]


class MeasuredPage:
    """A page whose changes are timed."""

    def __init__(self, page: Any, repeats: int) -> None:
        self.page = page
        self.repeats = repeats
        self.requests = 0  # that have begun
        self.running: set[Any] = set()
        page.on("request", self.note_request)
        page.on("requestfinished", self.note_end)
        page.on("requestfailed", self.note_end)

    def note_request(self, request: Any) -> None:
        self.requests += 1
        self.running.add(request)

    def note_end(self, request: Any) -> None:
        self.running.discard(request)

    def settle(self) -> None:
        """Wait until no request has run for 200 ms, so that all panels in view are drawn."""
        while True:
            before = self.requests
            self.page.wait_for_timeout(200)
            if self.requests == before and not self.running:
                return

    def change(self, selector: str, values: Iterable[Any], watched: str, view: str) -> Latencies:
        """Set an input to one value after another, and time the changes of what is watched.

        selector: the CSS selector of the input. watched: the CSS selector of the part of a panel
        that changes. view: the name of the panel's request.
        """
        latencies = Latencies([], [])
        for number, value in enumerate(islice(values, self.repeats + WARM_UP)):
            arguments = [selector, value, watched, view]
            since_event, since_request = self.page.evaluate(CHANGE, arguments)
            if number >= WARM_UP:
                latencies.since_event.append(since_event)
                latencies.since_request.append(since_request)
            self.settle()
        return latencies

    def first_tokens(self) -> list[float]:
        """The times from the button that writes to the first token."""
        times = [self.page.evaluate(FIRST_TOKEN) for _ in range(self.repeats + WARM_UP)]
        return times[WARM_UP:]

    def show(self, panel: str, watched: str) -> None:
        """Go to a panel, and wait until it and the others in view are drawn.

        watched: a CSS selector of the part that the panel's answer fills with a table or buttons.
        """
        self.page.evaluate("panel => document.getElementById(panel).scrollIntoView()", panel)
        self.page.wait_for_selector(f"{watched} td, {watched} button", timeout=PATIENCE)
        self.settle()


def print_times(name: str, times: Sequence[float]) -> None:
    median = statistics.median(times)
    print(f"{name:36} {median:7.0f} ms   longest {max(times):7.0f} ms", flush=True)


def print_latencies(models: list[str], repeats: int, busy: bool) -> None:
    """Print the median and the longest time of each interaction."""
    size = {"width": 1300, "height": 900}
    with ExitStack() as stack:
        url = stack.enter_context(serving(*models))
        page = stack.enter_context(browser_page(url, viewport=size))
        # Now the page has measured how symmetric the models are, and computes nothing more.
        page.wait_for_selector("#repair td", timeout=PATIENCE)
        if busy:
            stack.enter_context(busy_cores())
        measured = MeasuredPage(page, repeats)
        print_latencies_of_bars(measured)
        print_latencies_of_panels(measured)


def new_prompts(first: int) -> Iterator[str]:
    """1000 prompts of 10 tokens, which differ in their numbers, from `first` on."""
    for number in range(first, first + 1000):
        yield f"{number:04} abcde"


def print_latencies_of_bars(measured: MeasuredPage) -> None:
    changes = measured.repeats + WARM_UP
    temperatures = [0.5 + 0.05 * number for number in range(changes)]
    slider = measured.change("#temperature", temperatures, watched="#bars", view="next")
    print_times("slider to bars", slider.since_event)

    typing = measured.change("#prompt", new_prompts(first=0), watched="#bars", view="next")
    print_times("typing to bars", typing.since_event)
    print_times("first token of a text", measured.first_tokens())


@dataclass(frozen=True)
class Panel:
    view: str  # the panel's id, which is also the name of its request
    name: str  # in the output
    watched: str  # the CSS selector of the part that its answer fills


PANELS = (
    Panel("lens", f"lens of {LENS_TOKENS} positions", "#lensbox"),
    Panel("attention", "attention", "#heads"),
    Panel("parts", "parts", "#partsbox"),
)


def print_latencies_of_panels(measured: MeasuredPage) -> None:
    prompts = new_prompts(first=1000)  # after those of the bars
    for panel in PANELS:
        measured.show(panel.view, panel.watched)
        # The page draws the bars, waits up to 120 ms in case more is typed, and draws the panels
        # in view in their order.
        latencies = measured.change("#prompt", prompts, watched=panel.watched, view=panel.view)
        print_times(f"typing to {panel.view}", latencies.since_event)
        print_times(f"{panel.name} (its own request)", latencies.since_request)


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
            models = []
            if args.size:
                models.append(random_model(args.size, f"{directory}/model"))
            print_latencies(models, args.repeats, args.busy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
