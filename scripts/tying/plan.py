"""The jobs that the page needs, or one claim or bar of it.

A job is the call that makes one line of runs.jsonl. Its `work` is its time in seconds on one core,
roughly, for the estimate that is printed. A figure of the page is a sum of terms, each a measure of
a run, for several seeds; so its jobs are the runs of its terms with each seed. A model is a row of
the table of settings.py, whose learning rate for a head is OPEN until a pilot has chosen it. The
pilot is trainings with seeds of their own, at several rates. A path is a way through a model from
one token to scores of the next; the path is compared with the bigrams of the text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from .engine import Job, Line
from .figures import Figure, Numbers, Runs, with_seed
from .job import do_run
from .settings import PILOT_SEEDS, TABLE, TENTH_PILOT, TENTH_PILOT_SEEDS, Run, pilot_models
from .texts import compare, measure_text, time_steps

WIDEST = max(model.size.width for model in TABLE)
# For the `work` of a job, roughly
HELD_OUT = 60_000  # tokens of a text
TEXT_SECONDS = 43  # to measure a text


def run_job(run: Run, out: Path, text: str) -> Job:
    """The job that trains a model and measures it, and its paths only if the page shows them."""
    if run.is_chain:
        name = ""  # no text is read, so the line holds for every text
    else:
        name = text
    return Job(
        run=run.as_json,
        text=name,
        function=do_run,
        arguments=(run, out, text, shows_paths(run)),
        work=run.seconds(HELD_OUT),
    )


def shows_paths(run: Run) -> bool:
    """Whether the run is one of a model whose paths the page shows, at the rate of the table."""
    without_seed = replace(run, seed=0)
    for model in TABLE:
        if model.shows_paths:
            if without_seed in [model.run(head) for head in model.heads]:
                return True
    return False


def job_of(line: Line, out: Path, text: str) -> Job:
    """The job that measures a run, given as the "run" of its line in runs.jsonl."""
    if "compare" in line:
        first = Run(**line["compare"])
        second = Run(**line["with"])
        # Both models are trained for the comparison. No held-out text is scored.
        seconds = first.seconds(held_out=0) + second.seconds(held_out=0)
        return Job(line, text, compare, arguments=(first, second, out, text), work=seconds)
    if line.get("measure") == "step time":
        V = line["vocab_size"]
        no_text = ""  # the timed steps train on random tokens
        seconds = V // 2000  # roughly: the time of a step grows with the vocabulary
        return Job(line, no_text, time_steps, arguments=(Run(), V), work=seconds)
    if line.get("measure") == "text":
        return Job(line, text, measure_text, arguments=(out, text, Run()), work=TEXT_SECONDS)
    return run_job(Run(**line), out, text)


def is_training(line: Line) -> bool:
    """Whether a run is the training of one model."""
    return "compare" not in line and "measure" not in line


def jobs_of(figures: Iterable[Figure], out: Path) -> Iterator[Job]:
    """The jobs of all terms of the figures, with all seeds of each figure.

    Those with the first seed of any figure come first, then those with a second seed, and so on.
    """
    jobs_by_place: dict[int, list[Job]] = {}  # 0: with the first seed of a figure
    for figure in figures:
        for term in figure.terms:
            if is_training(term.run) and "lr" not in term.run:
                continue  # its rate is still OPEN, which a run leaves out
            for place, seed in enumerate(figure.all_seeds):
                job = job_of(with_seed(term.run, seed), out, term.text)
                jobs_by_place.setdefault(place, []).append(job)
    for place in sorted(jobs_by_place):
        yield from jobs_by_place[place]


def whole_plan(runs: Runs, numbers: dict[str, Numbers], out: Path) -> list[Job]:
    """The jobs of the pilots, and of all figures of the page and of its tables, each job once.

    `numbers` has the figures of each section of the page.
    """
    figures: list[Figure] = []
    for section in numbers.values():
        figures += section.values()
    for model in TABLE:
        for head in model.heads:
            figures.append(runs.measure(model.name, head))

    # Several figures may need one run. It becomes one job, because its key is the same.
    jobs = {job.key: job for job in pilot_jobs(runs, out)}
    for job in jobs_of(figures, out):
        jobs.setdefault(job.key, job)

    # The widest models take most of the time, so they come last. The sort is stable, so the order
    # of all other jobs stays.
    ordered = list(jobs.values())
    ordered.sort(key=lambda job: job.run.get("width") == WIDEST)
    return ordered


def pilot_jobs(runs: Runs, out: Path) -> Iterator[Job]:
    """The jobs of all pilots: each model with each head, at each rate that is tried so far."""
    for model, head in pilot_models():
        for rate in runs.tried_rates(model, head):
            for seed in PILOT_SEEDS[: model.pilot_seeds]:
                run = replace(model.run(head, rate), seed=seed)
                yield run_job(run, out, runs.text_of(model))

    # The pilot of the model "tenth" tries pairs of a rate and a number of steps.
    for head, tries in TENTH_PILOT.items():
        for rate, steps in tries:
            for seed in PILOT_SEEDS[:TENTH_PILOT_SEEDS]:
                run = Run(layers=1, head=head, text="tenth", steps=steps, lr=rate, seed=seed)
                yield run_job(run, out, runs.text)
