"""The tying experiment: train small models, tied and untied, with one thing varied at a time, on one text.

    python scripts/tying_experiment.py tinyshakespeare.txt OUT

takes two to two and a half hours on two cores. It does two runs at a time, one thread each. Ctrl-C stops it;
the same command then continues with the runs that are missing. If none is missing, it only writes the results
again. With --quick it does a small part of the grid in about eleven minutes, at the published learning rates:
three of its seeds, or, with --seed-offset, three others. With --claim 3 it does only what claim 3 of the page
needs. It says first how long it will take. It writes to OUT:

    runs.jsonl       one line for each finished run: its settings and what was measured
    results.json     means over the seeds with 95 % intervals, differences seed by seed, verdicts
    tables.md        the losses of each set
    texts/ matrices/ the text as tokens, W_E and W_U of trained models

and, for the published text and without --claim,

    verdicts.txt     the verdicts, beside those of the published results
    README.md        the page: tying/page.md with the figures of results.json
    *.png            the pictures of the page; need `pip install -e .[plot]`

scripts/tying/ has the code; grid.py lists what is trained, and why.
"""

from tiedgpt.__main__ import exit_at_once, on_ctrl_c

if __name__ == "__main__":
    on_ctrl_c(exit_at_once)  # while the rest is imported, there is nothing to clean up

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tying import engine, page
from tying.engine import Job, Line, do_jobs
from tying.grid import CLAIMS, QUICK, Plan, Run, pilot_of, runs_of, with_rates
from tying.job import (
    TIMED_STEPS,
    TIMINGS,
    data_path,
    do_run,
    matrices_path,
    measure_text,
    prepare,
    text_corpus,
    time_steps,
)
from tying.results import Similarities, agreement, choose_rates, results_of, summarize

import tiedgpt
from tiedgpt.checkpoints.files import StagedFiles
from tiedgpt.cli.terminal import read_text

PUBLISHED = Path(__file__).parent / "tying_results" / "results.json"


def do_all(
    plan: Plan, known: Line, text: str, out: Path, pool: Callable[[], Any], claim: int | None, workers: int
) -> Line:
    """Do what is missing of the pilot, then of the sets; return the contents of results.json.

    A plan without a pilot has the learning rates of `known`, the published results. With `claim`, only the
    sets of this claim.
    """
    out.mkdir(parents=True, exist_ok=True)
    sets = [s for s in plan.sets() if claim is None or s.name in CLAIMS[claim]]
    if claim not in (None, 8):
        plan = replace(plan, vocabularies=())  # no time of a step
    pilot_runs = pilot_of(plan, sets)
    vocabularies = {run.vocab_size for run in (plan.small, plan.large) if run}
    texts = {V: prepare(text, V, data_path(out, V)) for V in vocabularies}
    file = out / "runs.jsonl"
    done = len(engine.read_lines(file))
    every = [*pilot_runs, *runs_of(sets, plan.seeds)]
    minutes = sum(run.work for run in every) / workers / 60
    print(f"{len(every)} runs, about {minutes:.0f} minutes; {done} are done already", file=sys.stderr)

    def job(run: Run, studied: bool = False) -> Job:
        settings = {"run": asdict(run), "texts": texts.get(run.vocab_size), "studied": studied}
        return Job(
            do_run, (run, out, studied), settings, run.work, matrices_path(out, run) if studied else None
        )

    sizes = asdict(plan.small)
    text_job = Job(measure_text, (out, plan), {"text": texts[plan.small.vocab_size], "sizes": sizes}, work=60)
    timed = {"time": plan.vocabularies, "timings": TIMINGS, "steps": TIMED_STEPS, "sizes": sizes}
    time_jobs = [Job(time_steps, (plan,), timed, work=60)] if plan.vocabularies else []
    pilot = {run: job(run) for run in pilot_runs}
    lines = do_jobs([text_job, *pilot.values()], file, pool)
    rates = choose_rates({run: lines[job.key] for run, job in pilot.items()}) or known["rates"]

    sets = with_rates(sets, {kind: rate["best"] for kind, rate in rates.items()})
    studied = set(runs_of([s for s in sets if s.studied], plan.seeds))
    jobs = {run: job(run, run in studied) for run in runs_of(sets, plan.seeds)}
    lines = do_jobs([*time_jobs, *jobs.values()], file, pool)

    V = plan.small.vocab_size
    similarities = Similarities(out, plan.seeds, text_corpus(data_path(out, V), V).frequent(1))
    of_text = lines[text_job.key]
    of_runs = {run: lines[job.key] for run, job in jobs.items()}
    summaries = {
        s.name: summarize(s, plan.seeds, of_runs, of_text, similarities if s.similar else None) for s in sets
    }
    ratios = {V: of for time_job in time_jobs for V, of in lines[time_job.key]["ratios"].items()}
    return results_of(plan, rates, summaries, of_text, ratios)


def published() -> Line:
    try:
        return json.loads(PUBLISHED.read_text(encoding="utf-8"))
    except ValueError as error:
        raise tiedgpt.TiedGPTError(f"{PUBLISHED}: expected JSON: {error}; restore the file") from error


def write(found: Line, known: Line, out: Path, claim: int | None) -> None:
    """Write results.json and the tables. Print the tables, or the verdicts beside those of `known`.

    The words of the page are about all claims and the published text, so for them alone it is written too.
    """
    whole = claim is None and found["text"]["bigram_entropy"] == known["text"]["bigram_entropy"]
    shown = "\n".join(agreement(found, known)) + "\n" if whole else page.tables(found)
    with StagedFiles(out) as files:
        files.open("results.json").write(page.as_json(found).encode())
        files.open("tables.md").write(page.tables(found).encode())
        if whole:
            files.open("verdicts.txt").write(shown.encode())
            files.open("README.md").write(page.render(found).encode())
            pictures = page.pictures(found) if find_spec("matplotlib") else {}
            for name, picture in pictures.items():
                files.open(name).write(picture)
            if not pictures:
                print("no pictures: they need matplotlib, `pip install -e .[plot]`", file=sys.stderr)
    for kind, rate in found["rates"].items():
        if rate["at_edge"] and found["plan"]["pilot_seeds"]:
            note = f"the best rate of the pilot, {rate['best']:g}, is the lowest or the highest: {kind}"
            print(f"note: {note}; try more rates in grid.py", file=sys.stderr)
    print(shown, end="")
    print(f"wrote {out / ('README.md' if whole else 'tables.md')}", file=sys.stderr)


def main(arguments: list[str] | None = None, plan: Plan | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("corpus", help="a text in UTF-8")
    parser.add_argument("out", metavar="OUT", type=Path, help="a directory, new or of an interrupted run")
    parser.add_argument(
        "--quick", action="store_true", help="three seeds, fewer questions, at the published learning rates"
    )
    parser.add_argument(
        "--seed-offset",
        type=int,
        default=0,
        metavar="N",
        help="repeat with up to four other seeds: add N to the first ones, not to those of the pilot",
    )
    parser.add_argument("--claim", type=int, choices=CLAIMS, help="only what one claim of the page needs")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=2, metavar="N", help="do N runs at a time (default: 2)")
    where.add_argument("--dask", metavar="ADDRESS", help="do the runs on the workers of a Dask scheduler")
    try:
        on_ctrl_c(signal.default_int_handler)
        args = parser.parse_args(arguments)
        if args.workers < 1 or args.seed_offset < 0:
            parser.error("--workers must be at least 1, and --seed-offset at least 0")
        plan = plan or (QUICK if args.quick else Plan())
        if args.seed_offset:
            used = {*plan.pilot_seeds, *Plan().pilot_seeds, *Plan().seeds}
            plan = plan.repeated(args.seed_offset)
            if used & set(plan.seeds):
                parser.error("--seed-offset: the published results or the pilot have these seeds; try 1000")
        if args.dask and not find_spec("distributed"):
            raise tiedgpt.TiedGPTError("--dask needs Dask: pip install -e .[dask]")
        pool = partial(engine.dask, args.dask) if args.dask else partial(engine.processes, args.workers)
        known = published()
        text, out = read_text(args.corpus), args.out.absolute()
        found = do_all(plan, known, text, out, pool, args.claim, args.workers)
        write(found, known, args.out, args.claim)
    except KeyboardInterrupt:
        print("\nstopped; the same command continues with the missing runs", file=sys.stderr)
        return 130
    except (tiedgpt.TiedGPTError, OSError) as error:
        print(f"tying_experiment: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
