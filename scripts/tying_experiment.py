"""The tying experiment: train small models, tied and untied, with one thing varied at a time, on
one text.

    python scripts/tying_experiment.py tinyshakespeare.txt OUT          the whole grid
    python scripts/tying_experiment.py some-text.txt OUT --claim 3      claim 3 of the page alone

It says first how long it will take. It does two runs at a time, one thread each. Ctrl-C stops it;
the same command then continues with the runs that are missing. It writes to OUT:

    runs.jsonl       one line for each finished run: its settings and what was measured
    tables.md        means, 95 % intervals and standard deviations of each set and the pilot, and
                     all verdicts
    README.md        for the published text: the page, and its pictures (`pip install -e .[plot]`)

With scripts/tying_results as OUT, nothing is missing, and it writes the page again. --claim writes
only runs.jsonl, and prints the table and the figures of one claim; Holm's correction then counts
the tests of that claim alone. The learning rates are the pilot's, for the published text. Paths are
compared with bigrams if at least 10 tokens occur 100 times.
"""

import signal

from tiedgpt.__main__ import on_ctrl_c

if __name__ == "__main__":
    on_ctrl_c(signal.SIG_DFL)  # while the rest is imported, there is nothing to clean up

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from itertools import zip_longest
from pathlib import Path

from tying import engine, grid, page
from tying.engine import Job, Plan
from tying.grid import Run
from tying.job import do_run, prepare, text_name
from tying.results import Found, collect
from tying.texts import compare, measure_text, time_steps

import tiedgpt
from tiedgpt.checkpoints.publishing import StagedFiles, lock_directory
from tiedgpt.cli import handle_termination
from tiedgpt.cli.options import positive_int
from tiedgpt.cli.texts import read_text

PUBLISHED = "86c4e6aa9db7"  # the name of tinyshakespeare.txt


def plan(text: str, out: Path, claim: int | None, held_out: int = 0) -> Plan:
    """What the grid needs, or one claim of the page. `held_out`: tokens, for the time that runs
    take."""

    def training(run: Run, seed: int) -> Job:
        run, name = replace(run, seed=seed), "" if run.text == "chain" else text
        return Job(run.as_json, name, do_run, (run, out, text), run.work(held_out))

    def comparison(one: Run, other: Run, seeds: tuple[int, int]) -> Job:
        pair = replace(one, seed=seeds[0]), replace(other, seed=seeds[1])
        of = {"compare": pair[0].as_json, "with": pair[1].as_json}
        return Job(of, text, compare, (*pair, out, text), one.work(held_out) + other.work(held_out))

    found = {
        name: {kind: [training(run, seed) for seed in grid.SEEDS] for kind, run in kinds.items()}
        for name, kinds in grid.sets().items()
    }
    pairs = list(zip(grid.SEEDS[::2], grid.SEEDS[1::2], strict=False))  # no model is used twice
    both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    of = found["similarity"] = {}
    for place in grid.COMPARED:
        tied, untied = (grid.sets()["models"][f"{place}/{head}"] for head in ("tied", "untied"))
        of[place] = [comparison(untied, tied, pair) for pair in both]
        of[f"{place}, two tied"] = [comparison(tied, tied, pair) for pair in pairs]
    kinds = {
        ", ".join(f"{name} {x}" for name, x in run.as_json.items()): run for run in grid.pilot()
    }
    found["pilot"] = {
        kind: [training(run, seed) for seed in grid.PILOT_SEEDS] for kind, run in kinds.items()
    }
    for V in grid.VOCABULARIES:
        timed = [
            {"measure": "step time", "vocab_size": V, "timing": n}
            for n in range(1, grid.TIMINGS + 1)
        ]
        found.setdefault("step time", {})[f"{V}"] = [
            Job(of, "", time_steps, (grid.SMALL, V), V // 2000) for of in timed
        ]
    if claim:
        named = page.kinds_of(page.section(claim))
        found = {
            name: {kind: of[kind] for kind in of if (name, kind) in named}
            for name, of in found.items()
        }
    work = 40 + held_out // 20_000  # with the vocabulary, which is learned before
    found["text"] = {
        "whole": [Job({"measure": "text"}, text, measure_text, (out, text, grid.SMALL), work)]
    }
    return found


def do_all(text: str, out: Path, claim: int | None, workers: int) -> Found:
    """Do the jobs that have no line, the first seed of each first. Returns what all of them
    measured."""
    held_out = len(text) // 20  # tokens: a tenth of the text, and a token has about two characters
    of_plan = plan(text_name(text), out, claim, held_out)
    by_seed = zip_longest(*(jobs for kinds in of_plan.values() for jobs in kinds.values()))
    jobs = {job.key: job for of_seed in by_seed for job in of_seed if job}
    lines = engine.read_lines(file := out / "runs.jsonl")
    missing = [job for job in jobs.values() if job.key not in lines]
    minutes = max(sum(work := [job.work for job in missing]) / workers, *work, 0) / 60
    print(
        f"{len(missing)} of {len(jobs)} runs are missing: about {minutes:.1f} minutes",
        file=sys.stderr,
    )
    prepare(text, grid.SMALL.vocab_size, out)
    engine.do_jobs(missing, file, workers)
    return collect(of_plan, engine.read_lines(file))


def files_of(found: Found, published: bool) -> dict[str, bytes]:
    """The tables; for the published text also the page and its pictures."""
    shown = page.Page(found)
    files = {"tables.md": f"{page.tables(found)}\n{shown.listing()}\n".encode()}
    if not published:
        return files
    if find_spec("matplotlib"):
        for name, picture in page.PICTURES.items():
            picture(found).savefig(drawn := BytesIO())
            files[name] = drawn.getvalue()
    else:
        print("no pictures: they need matplotlib, `pip install -e .[plot]`", file=sys.stderr)
    return {**files, "README.md": shown.render().encode()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("corpus", help="a text in UTF-8")
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="a directory, new or of an interrupted run"
    )
    parser.add_argument(
        "--claim", type=int, choices=range(1, 10), help="only what one claim needs; print it"
    )
    parser.add_argument(
        "--workers", type=positive_int, default=2, help="runs at a time (default: 2)"
    )
    try:
        on_ctrl_c(signal.default_int_handler)
        args = parser.parse_args(arguments)
        text, out, claim = read_text(args.corpus), args.out.absolute(), args.claim
        handle_termination()
        with lock_directory(out):
            found = do_all(text, out, claim, args.workers)
            if claim:
                print(page.claim(found, claim))
                return 0
            with StagedFiles(out) as staged:
                for file, data in files_of(found, text_name(text) == PUBLISHED).items():
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
