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

With scripts/tying_results as OUT, it continues from the published runs and writes the page again. With
--no-training it does so with the seeds that are complete. The learning rates are those that the pilot chose
for the published text. scripts/tying/ has the code, and grid.py what is trained.
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
from pathlib import Path

from tying import engine, grid, page
from tying.engine import Job
from tying.grid import CLAIMS, Run, pilot, sets
from tying.job import do_run, matrices_path, prepare, text_name
from tying.results import VOCABULARIES, Found, collect, similarities, similarity_json
from tying.texts import compare, measure_text, time_steps

import tiedgpt
from tiedgpt.checkpoints.files import StagedFiles
from tiedgpt.cli.terminal import read_text

PUBLISHED = "86c4e6aa9db7"  # the name of tinyshakespeare.txt


def plan(text: str, out: Path, claim: int | None) -> tuple[list[Job], list[Job]]:
    """The jobs of the grid, or of one claim, and those that read the matrices of trained models."""
    kinds = [run for name in set_names(claim) for run in sets()[name].values()]
    runs = [replace(run, seed=seed) for seed in grid.SEEDS for run in kinds]
    if claim is None:
        runs = [*(replace(run, seed=seed) for seed in grid.PILOT_SEEDS for run in pilot()), *runs]
    jobs = [Job({"measure": "text"}, text, measure_text, (out, text, grid.SMALL))]
    if claim in (None, 8):
        timed = [{"measure": "step time", "vocab_size": V} for V in VOCABULARIES]
        jobs += [Job(of, "", time_steps, (grid.SMALL, of["vocab_size"])) for of in timed]
    for run in dict.fromkeys(runs):
        studied = run.text == "whole" and run.seed not in grid.PILOT_SEEDS
        name = "" if run.text == "chain" else text
        jobs.append(Job(run.as_json, name, do_run, (run, out, text, studied), run.work))
    if claim not in (None, 7):
        return jobs, []
    pairs = [pair for of in similarities(grid.SEEDS).values() for pair in of]
    return jobs, [Job(similarity_json(*pair), text, compare, (out, text, *pair), 1) for pair in pairs]


def set_names(claim: int | None) -> tuple[str, ...]:
    return tuple(sets()) if claim is None else CLAIMS[claim]


def do_all(jobs: list[Job], comparing: list[Job], out: Path, workers: int, train: bool) -> None:
    """Do the jobs that have no line in runs.jsonl, and again the runs whose matrices are missing."""

    def there(run: Run) -> bool:
        return matrices_path(out, run).exists()

    file = out / "runs.jsonl"
    lines = engine.read_lines(file)
    comparing = [job for job in comparing if job.key not in lines]
    again = {run for job in comparing for run in job.arguments[2:] if not there(run)}
    missing = [job for job in jobs if job.key not in lines or job.arguments[0] in again]
    missing = [job for job in missing if train or job.function is not do_run]
    minutes = sum(job.work for job in missing) / workers / 60
    print(f"{len(missing)} of {len(jobs)} runs are missing: about {minutes:.0f} minutes", file=sys.stderr)
    engine.do_jobs(missing, file, workers)
    engine.do_jobs([job for job in comparing if all(map(there, job.arguments[2:]))], file, workers)


def files_of(found: Found, whole: bool) -> dict[str, bytes]:
    """The tables; for the whole grid on the published text, also the page."""
    if not whole:
        return {"tables.md": page.tables(found).encode()}
    if not found["similarity"]:
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
    parser.add_argument("--claim", type=int, choices=CLAIMS, help="only what one claim of the page needs")
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="do N runs at a time (default: 2)"
    )
    parser.add_argument("--no-training", action="store_true", help="write the page from the runs in OUT")
    try:
        on_ctrl_c(signal.default_int_handler)
        args = parser.parse_args(arguments)
        if args.workers < 1:
            parser.error("--workers must be at least 1")
        text, out, claim = read_text(args.corpus), args.out.absolute(), args.claim
        name = text_name(text)
        prepare(text, grid.SMALL.vocab_size, out)
        do_all(*plan(name, out, claim), out, args.workers, not args.no_training)
        found = collect(engine.read_lines(out / "runs.jsonl"), name, set_names(claim))
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
