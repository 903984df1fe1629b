"""The jobs that the page needs, or one claim or bar of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from .engine import Job, Line
from .figures import Figure, Numbers, Runs, Seed, with_seed
from .job import do_run
from .settings import PILOT_SEEDS, TABLE, TENTH_PILOT, Run, pilot_models
from .texts import compare, measure_text, time_steps

WIDEST = max(model.size.width for model in TABLE)
HELD_OUT = 60_000  # tokens, for the estimate of the time


def run_job(run: Run, out: Path, text: str) -> Job:
    """Train and measure one model. The paths are compared with the bigrams at width 64 alone."""
    name = "" if run.is_chain else text
    with_paths = is_of_first_grid(run)
    return Job(run.as_json, name, do_run, (run, out, text, with_paths), run.seconds(HELD_OUT))


def is_of_first_grid(run: Run) -> bool:
    """Whether the run is one of a model whose paths the page shows, at the rate of the table."""
    without_seed = replace(run, seed=0)
    return any(
        without_seed == model.run(head)
        for model in TABLE
        if model.shows_paths
        for head in model.heads
    )


def job_of(line: Line, out: Path, text: str) -> Job:
    """The job that measures a run, given as it is in runs.jsonl."""
    if "compare" in line:
        first = Run(**line["compare"])
        second = Run(**line["with"])
        seconds = first.seconds(0) + second.seconds(0)
        return Job(line, text, compare, (first, second, out, text), seconds)
    if line.get("measure") == "step time":
        V = line["vocab_size"]
        return Job(line, "", time_steps, (Run(), V), V // 2000)
    if line.get("measure") == "text":
        return Job(line, text, measure_text, (out, text, Run()), 40 + HELD_OUT // 20_000)
    return run_job(Run(**line), out, text)


def is_training(line: Line) -> bool:
    return "compare" not in line and "measure" not in line


def jobs_of(figures: Iterable[Figure], out: Path) -> Iterator[Job]:
    """The jobs of all terms of some figures, the first seed of each first."""
    wanted: list[tuple[int, Line, str, Seed]] = []
    for figure in figures:
        for term in figure.terms:
            if is_training(term.run) and "lr" not in term.run:
                continue  # the pilot has not chosen the rate yet
            for place, seed in enumerate(figure.all_seeds):
                wanted.append((place, term.run, term.text, seed))
    for _, run, text, seed in sorted(wanted, key=lambda job: job[0]):
        yield job_of(with_seed(run, seed), out, text)


def whole_plan(runs: Runs, numbers: dict[str, Numbers], out: Path) -> list[Job]:
    """The jobs of the page: what its figures and the tables are made of, and the pilot."""
    figures = [figure for section in numbers.values() for figure in section.values()]
    jobs = {job.key: job for job in pilot_jobs(runs, out)}
    for model in TABLE:
        for head in model.heads:
            figures.append(runs.measure(model.name, head))
    for job in jobs_of(figures, out):
        jobs.setdefault(job.key, job)
    # The widest models take most of the time, and come last.
    return sorted(jobs.values(), key=lambda job: job.run.get("width", 0) == WIDEST)


def pilot_jobs(runs: Runs, out: Path) -> Iterator[Job]:
    """Each model at each rate that its pilot tries, with the pilot's seeds."""
    for model, head in pilot_models():
        text = runs.second_text if model.second_text else runs.text
        for rate in runs.tried_rates(model, head):
            for seed in PILOT_SEEDS[: model.pilot_seeds]:
                yield run_job(replace(model.run(head, rate), seed=seed), out, text)
    for head, tries in TENTH_PILOT.items():
        for rate, steps in tries:
            for seed in PILOT_SEEDS[:2]:
                run = Run(layers=1, head=head, text="tenth", steps=steps, lr=rate, seed=seed)
                yield run_job(run, out, runs.text)
