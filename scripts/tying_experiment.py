"""The tying experiment: train small models, tied and untied, with one thing varied at a time, on one text.

    python scripts/tying_experiment.py tinyshakespeare.txt OUT              the whole grid
    python scripts/tying_experiment.py some-text.txt OUT --claim 3          what claim 3 of the page needs

It says first how long it will take. It does two runs at a time, one thread each. Ctrl-C stops it; the same
command then continues with the runs that are missing. It writes to OUT:

    runs.jsonl       one line for each finished run: its settings and what was measured
    tables.md        means, 95 % intervals and standard deviations of each set, and the pilot

and, for the published text and without --claim, the verdicts in tables.md and

    README.md        the page: tying/page.md with the figures of the runs
    chains.png       its picture; needs `pip install -e .[plot]`

With scripts/tying_results as OUT, it continues from the published runs and writes the page again; with
--no-training, from the seeds that are complete. The learning rates are the pilot's, for the published text.
"""

from tiedgpt.__main__ import exit_at_once, on_ctrl_c

if __name__ == "__main__":
    on_ctrl_c(exit_at_once)  # while the rest is imported, there is nothing to clean up

import argparse
import signal
import sys
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from itertools import zip_longest
from pathlib import Path

from tying import engine, grid, page
from tying.engine import Job, Line, Plan
from tying.grid import Run
from tying.job import do_run, prepare, text_name
from tying.results import Found, collect
from tying.texts import compare, measure_text, time_steps

import tiedgpt
from tiedgpt.checkpoints.files import StagedFiles
from tiedgpt.cli.terminal import read_text

PUBLISHED = "86c4e6aa9db7"  # the name of tinyshakespeare.txt


def plan(text: str, out: Path, claim: int | None) -> Plan:
    """What the grid needs, or one claim of the page."""

    def training(run: Run, seed: int) -> Job:
        run = replace(run, seed=seed)
        return Job(run.as_json, "" if run.text == "chain" else text, do_run, (run, out, text), run.work)

    def comparison(one: Run, other: Run, seeds: tuple[int, int]) -> Job:
        pair = replace(one, seed=seeds[0]), replace(other, seed=seeds[1])
        of = {"compare": pair[0].as_json, "with": pair[1].as_json}
        return Job(of, text, compare, (*pair, out, text), one.work + other.work)

    shown = claim and page.PAGE.read_text(encoding="utf-8").split("\n## ")[claim + 1]
    found = {
        name: {
            kind: [training(run, seed) for seed in grid.SEEDS]
            for kind, run in kinds.items()
            if not shown or f" {kind} " in shown or f" {kind}:" in shown
        }
        for name, kinds in grid.sets().items()
    }
    if claim in (None, 7):
        pairs = list(zip(grid.SEEDS[::2], grid.SEEDS[1::2], strict=False))  # no model is used twice
        both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
        of = found["similarity"] = {}
        for place in grid.COMPARED:
            tied, untied = (grid.sets()["models"][f"{place}/{head}"] for head in ("tied", "untied"))
            of[place] = [comparison(untied, tied, pair) for pair in both]
            of[f"{place}, two tied"] = [comparison(tied, tied, pair) for pair in pairs]
    if claim is None:
        kinds = {", ".join(f"{name} {x}" for name, x in run.as_json.items()): run for run in grid.pilot()}
        found["pilot"] = {
            kind: [training(run, seed) for seed in grid.PILOT_SEEDS] for kind, run in kinds.items()
        }
    found["text"] = {"whole": [Job({"measure": "text"}, text, measure_text, (out, text, grid.SMALL))]}
    if claim in (None, 8):
        found["step time"] = {
            str(V): [Job({"measure": "step time", "vocab_size": V}, "", time_steps, (grid.SMALL, V))]
            for V in grid.VOCABULARIES
        }
    return found


def do_all(plan: Plan, file: Path, workers: int, train: bool) -> dict[str, Line]:
    """Do the jobs that have no line in the file, the first seed of each first. Returns the lines."""
    by_seed = zip_longest(*(jobs for kinds in plan.values() for jobs in kinds.values()))
    jobs = {job.key: job for of_seed in by_seed for job in of_seed if job}
    lines = engine.read_lines(file)
    missing = [job for job in jobs.values() if job.key not in lines]
    missing = [job for job in missing if train or job.function not in (do_run, compare)]
    minutes = max(sum(work := [job.work for job in missing]) / workers, *work, 0) / 60
    print(f"{len(missing)} of {len(jobs)} runs are missing: about {minutes:.1f} minutes", file=sys.stderr)
    engine.do_jobs(missing, file, workers)
    return engine.read_lines(file)


def files_of(found: Found, whole: bool) -> dict[str, bytes]:
    """The tables; for the whole grid on the published text, also the page."""
    if not whole:
        return {"tables.md": page.tables(found).encode()}
    if not found.get("models") or not found.get("similarity"):
        raise tiedgpt.TiedGPTError("expected at least two complete seeds: run it without --no-training")
    published = page.Page(found)
    files = {"tables.md": f"{page.tables(found)}\n{published.verdicts()}\n".encode()}
    if find_spec("matplotlib"):
        page.picture(found).savefig(picture := BytesIO())
        files["chains.png"] = picture.getvalue()
    else:
        print("no picture: it needs matplotlib, `pip install -e .[plot]`", file=sys.stderr)
    return {**files, "README.md": published.render().encode()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("corpus", help="a text in UTF-8")
    parser.add_argument("out", metavar="OUT", type=Path, help="a directory, new or of an interrupted run")
    parser.add_argument("--claim", type=int, choices=range(1, 10), help="only what one claim needs")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="runs at a time (default: 2)")
    parser.add_argument("--no-training", action="store_true", help="write the page from the runs in OUT")
    try:
        on_ctrl_c(signal.default_int_handler)
        args = parser.parse_args(arguments)
        if args.workers < 1:
            parser.error("--workers must be at least 1")
        text, out, claim = read_text(args.corpus), args.out.absolute(), args.claim
        name = text_name(text)
        prepare(text, grid.SMALL.vocab_size, out)
        jobs = plan(name, out, claim)
        found = collect(jobs, do_all(jobs, out / "runs.jsonl", args.workers, not args.no_training))
        with StagedFiles(out) as staged:
            for file, data in files_of(found, claim is None and name == PUBLISHED).items():
                staged.open(file).write(data)
                print(f"wrote {args.out / file}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nstopped; the same command continues with the missing runs", file=sys.stderr)
        return 130
    except (tiedgpt.TiedGPTError, OSError) as error:
        print(f"tying_experiment: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
