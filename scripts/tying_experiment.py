"""The tying experiment: train small models, tied and untied, with one thing varied at a time.

    python scripts/tying_experiment.py tinyshakespeare.txt OUT                   the whole page
    python scripts/tying_experiment.py tinyshakespeare.txt OUT --bar "width 64"  one bar of it again
    python scripts/tying_experiment.py some-text.txt OUT --claim 3               claim 3, any text

It needs `pip install -e .[tying]`. It says first how long it will take. It does two runs at a time,
one thread each. Ctrl-C stops it; the same command then continues with the runs that are missing. It
writes to OUT:

    runs.jsonl       one line for each finished run: its settings and what was measured
    tables.md        all models, the pilot, and all figures with their tests
    figures.json     what each figure is computed from
    README.md        for the published text: the page, and its pictures

With scripts/tying_results as OUT and --no-training it writes the page again from the runs that are
there. --claim and --bar write only runs.jsonl, and print what they find. Holm's correction then
counts the tests of that claim alone. The learning rates are those of the published text.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    # While the rest is imported, Ctrl-C ends the script at once: there is nothing to clean up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import sys
from io import BytesIO
from pathlib import Path

from tying import engine, first_screen, page, pictures, plan
from tying.data import prepare, text_name
from tying.engine import Job
from tying.figures import Runs
from tying.settings import NEW_SEEDS, SECOND_TEXT, Run
from tying.texts import documentation

import tiedgpt
from tiedgpt.checkpoints.publishing import StagedFiles, lock_directory

PUBLISHED = "86c4e6aa9db7"  # the name of tinyshakespeare.txt
RESULTS = Path(__file__).with_name("tying_results")


class Experiment:
    """A text, a directory, and the runs that are in it."""

    def __init__(self, text: str, out: Path, workers: int) -> None:
        self.text = text
        self.name = text_name(text)
        self.out = out
        self.workers = workers  # runs at a time
        self.second_text = documentation()  # some models are trained on it
        self.second_name = text_name(self.second_text)

    def runs(self) -> Runs:
        """The runs that are done."""
        lines = engine.read_lines(self.out / "runs.jsonl")
        return Runs(lines, self.name, self.second_name)

    def do(self, jobs: list[Job]) -> bool:
        """Do the jobs that have no line in runs.jsonl. Returns whether there were such jobs."""
        lines = self.runs().lines
        missing = [job for job in jobs if job.key not in lines]

        # The workers share the jobs, but one worker alone does the longest job. `work` is the time
        # of a job in seconds, roughly.
        seconds_if_shared = sum(job.work for job in missing) / self.workers
        longest = max((job.work for job in missing), default=0)
        minutes = max(seconds_if_shared, longest) / 60
        print(
            f"{len(missing)} of {len(jobs)} runs are missing: about {minutes:.1f} minutes",
            file=sys.stderr,
        )
        if not missing:
            return False

        # Write files with the tokens of the texts that these jobs read. A job has a text's name.
        names = {job.text for job in missing}
        for text in (self.text, self.second_text):
            if text_name(text) in names:
                prepare(text, Run().vocab_size, self.out)
        engine.do_jobs(missing, self.out / "runs.jsonl", self.workers)
        return True

    def train_all(self) -> None:
        """Do all jobs of the page that are missing.

        When the pilots have tried some learning rates, they may need other rates, or choose the
        rates of other jobs. So the plan is made again until no job is missing.
        """
        while True:
            runs = self.runs()
            jobs = plan.whole_plan(runs, page.all_numbers(runs), self.out)
            did_some = self.do(jobs)
            if not did_some:
                return

    def claim(self, number: int) -> str:
        """Train what one claim needs, and return its section of the page."""
        while True:
            # These figures may not be known yet. They say which runs they need. Some say it only
            # when others are known, so this is repeated until no run is missing.
            needed = page.CLAIMS[number].numbers(self.runs())
            # Several figures may need one run. It becomes one job, because its key is the same.
            jobs = {job.key: job for job in plan.jobs_of(needed.values(), self.out)}
            did_some = self.do(list(jobs.values()))
            if not did_some:
                # Now the figures are computed again, with the new runs.
                return page.claim(self.runs(), number)

    def bar(self, name: str) -> str:
        """Repeat a bar with new seeds, and say whether its cost lies in the published interval."""
        if self.name != PUBLISHED:
            raise tiedgpt.TiedGPTError(
                f"the bars are about tinyshakespeare.txt, the text with the name {PUBLISHED}; this "
                f"text has the name {self.name}"
            )
        lines = engine.read_lines(RESULTS / "runs.jsonl")
        published = Runs(lines, PUBLISHED, self.second_name)
        bar, published_cost = page.bar(published, name)
        if not published_cost.is_known:
            raise tiedgpt.TiedGPTError(f"{bar.label}: the published cost is not known yet")
        # The terms of a figure are the measures that it adds and subtracts. A figure of the same
        # terms with the new seeds says which runs are needed.
        terms = published_cost.terms
        needed = published.figure(*terms, seeds=NEW_SEEDS)
        self.do(list(plan.jobs_of([needed], self.out)))
        found = self.runs().figure(*terms, seeds=NEW_SEEDS)
        if not found.is_known:
            raise tiedgpt.TiedGPTError(f"{bar.label}: a training diverged, so it has no cost")
        return first_screen.repeat(bar.label, found=found, published=published_cost)


def files_of(runs: Runs, published: bool) -> dict[str, bytes]:
    """The contents of the files of OUT by name, without runs.jsonl.

    Only the published text has a page with pictures.
    """
    files = {
        "tables.md": page.tables(runs).encode(),
        "figures.json": page.figures_json(runs).encode(),
    }
    if published:
        files["README.md"] = page.page(runs).encode()
        for name, draw in pictures.PICTURES.items():
            png = BytesIO()
            draw(runs).savefig(png)
            files[name] = png.getvalue()
    return files


def read_text(path: Path) -> str:
    """The text of a file, with its line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise tiedgpt.TiedGPTError(f"{path} is not UTF-8 text at byte {error.start}") from error


def interrupt_on_ctrl_c() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, as it does in Python by default.

    In a job that a shell script started with `&`, Ctrl-C is ignored. This stays so.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, with the exit code of a process that a signal ended.

    This code is 128 plus the number of the signal.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def parser() -> argparse.ArgumentParser:
    """The arguments of the command. Its help begins with the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("corpus", type=Path, help="a text in UTF-8")
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="a directory, new or of an interrupted run"
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--claim", type=int, choices=page.CLAIMS, help="only what one claim needs; print it"
    )
    parts.add_argument(
        "--bar",
        choices=[bar.name for bar in first_screen.BARS],
        help="a bar of the first screen again, with three new seeds",
    )
    parts.add_argument(
        "--no-training", action="store_true", help="write the files from the runs that are there"
    )
    parser.add_argument(
        "--workers", type=int, choices=range(1, 65), metavar="N", default=2, help="runs at a time"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    try:
        interrupt_on_ctrl_c()
        args = parser().parse_args(arguments)
        end_on_sigterm()
        experiment = Experiment(read_text(args.corpus), args.out.absolute(), args.workers)
        with lock_directory(experiment.out):  # so that no other process does the same runs
            run(experiment, args)
    except KeyboardInterrupt:
        print("\nstopped; the same command continues with the missing runs", file=sys.stderr)
        return 130  # as for a process that SIGINT ended
    except (tiedgpt.TiedGPTError, OSError) as error:
        print(f"tying_experiment: error: {error}", file=sys.stderr)
        return 2
    return 0


def run(experiment: Experiment, args: argparse.Namespace) -> None:
    """Do what the arguments ask for: one claim, one bar, or all the files."""
    if args.claim:
        print(experiment.claim(args.claim))
        return
    if args.bar:
        print(experiment.bar(args.bar))
        return
    if args.no_training:
        # The second text is Python's documentation. The runs in OUT were made with one version of
        # Python. The documentation of another version has another name.
        experiment.second_name = SECOND_TEXT
    else:
        experiment.train_all()
    files = files_of(experiment.runs(), published=experiment.name == PUBLISHED)
    with StagedFiles(experiment.out) as staged:
        for file, data in files.items():
            staged.open(file).write(data)
            print(f"wrote {args.out / file}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
