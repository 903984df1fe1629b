"""Train the runs of the new grid in the order of their importance, two at a time. Resumable.

    python scripts/more_runs.py TEXT OUT [--list]

The rate of a kind is chosen by its pilot: the lowest mean held-out loss of four seeds. The rates
of a pilot widen by a factor of two while the best is at an edge.
"""

import json
import math
import sys
import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from tying import engine
from tying.engine import Job
from tying.grid import RATES, TRIED, PILOT_SEEDS, SEEDS, Run, pilot
from tying.job import do_run, prepare, text_name
from tying.texts import compare, measure_text
from tying.grid import SMALL

WORKERS = 1
WIDTH_RATES = {  # width, layers, head: where the pilot starts
    (16, 1, "tied"): (0.004, 0.008, 0.016),
    (16, 1, "signs"): (0.008, 0.016, 0.032),
    (16, 1, "untied"): (0.008, 0.016, 0.032),
    (32, 1, "tied"): (0.004, 0.008, 0.016),
    (32, 1, "signs"): (0.004, 0.008, 0.016),
    (32, 1, "untied"): (0.004, 0.008, 0.016),
    (64, 1, "tied"): (0.002, 0.004, 0.008),
    (64, 1, "signs"): (0.004, 0.008, 0.016),
    (64, 1, "untied"): (0.004, 0.008, 0.016),
    (128, 1, "tied"): (0.002, 0.004, 0.008),
    (128, 1, "signs"): (0.002, 0.004, 0.008),
    (128, 1, "untied"): (0.002, 0.004, 0.008),
    (16, 0, "tied"): (0.016, 0.032, 0.064),
    (16, 0, "signs"): (0.008, 0.016, 0.032),
    (16, 0, "untied"): (0.004, 0.008, 0.016),
    (32, 0, "tied"): (0.016, 0.032, 0.064),
    (32, 0, "signs"): (0.004, 0.008, 0.016),
    (32, 0, "untied"): (0.004, 0.008, 0.016),
    (64, 0, "tied"): (0.016, 0.032, 0.064),
    (64, 0, "signs"): (0.004, 0.008, 0.016),
    (64, 0, "untied"): (0.002, 0.004, 0.008),
    (128, 0, "tied"): (0.008, 0.016, 0.032),
    (128, 0, "signs"): (0.004, 0.008, 0.016),
    (128, 0, "untied"): (0.002, 0.004, 0.008),
    (256, 1, "tied"): (0.001, 0.002, 0.004),
    (256, 1, "signs"): (0.001, 0.002, 0.004),
    (256, 1, "untied"): (0.001, 0.002, 0.004),
}
EQUAL = {(16, 1): 10, (32, 1): 22, (64, 1): 50, (128, 1): 112,
         (16, 0): 8, (32, 0): 16, (64, 0): 34, (128, 0): 68}
STABLE_RATES = {"tied": (0.004, 0.008, 0.016), "signs": (0.004, 0.008, 0.016),
                "untied": (0.004, 0.008, 0.016)}
WIDTHS = [(128, 1), (32, 1), (16, 1), (64, 1), (64, 0), (128, 0), (32, 0), (16, 0)]
HEADS3 = ("tied", "untied", "signs")
PAIRS = ((1, 2), (2, 1), (3, 4), (4, 3), (5, 6), (6, 5))


class Queue:
    def __init__(self, out, texts):
        self.out = out
        self.texts = texts
        self.lines = {}
        self.others = []

    def read_others(self):
        """Take the lines that another process has written: its keys and measures are the same."""
        # engine.read_lines would cut off a line that the other process is writing.
        for path in self.others:
            for row in path.read_text(encoding="utf-8").split("\n")[:-1]:
                line = json.loads(row)
                key = engine.key_of(line["run"], line["text"])
                if key not in self.lines:
                    self.lines[key] = line["result"]
                    with open(self.out / "runs.jsonl", "a", encoding="utf-8") as file:
                        file.write(row + "\n")

    def job(self, run, text):
        name = "" if run.text == "chain" else text
        return Job(run.as_json, name, do_run, (run, self.out, text, False), run.work(59436))

    def compare(self, one, other, text):
        key = {"compare": one.as_json, "with": other.as_json}
        work = one.work(0) + other.work(0)
        return Job(key, text, compare, (one, other, self.out, text), work)

    def loss(self, run, text):
        name = "" if run.text == "chain" else text
        line = self.lines.get(engine.key_of(run.as_json, name))
        if line is None:
            return None
        measure = "loss" if run.text != "chain" else "excess"
        value = line.get(measure, math.inf)
        return value if math.isfinite(value) else math.inf

    def means(self, kind, text, rates, seeds):
        found = {}
        for rate in rates:
            losses = [self.loss(replace(kind, lr=rate, seed=seed), text) for seed in seeds]
            if all(loss is not None for loss in losses):
                found[rate] = fmean(losses)
        return found

    def pilot(self, kind, text, rates, seeds=PILOT_SEEDS):
        """Jobs of the pilot, and the best rate once it is known."""
        rates = list(rates)
        while True:
            jobs = [
                self.job(replace(kind, lr=rate, seed=seed), text)
                for rate in rates for seed in seeds
            ]
            missing = [job for job in jobs if job.key not in self.lines]
            if missing:
                return missing, None
            means = self.means(kind, text, rates, seeds)
            best = min(means, key=means.get)
            if best == min(rates):
                rates.insert(0, best / 2)
            elif best == max(rates):
                rates.append(best * 2)
            else:
                return [], best

    def kind(self, kind, text, rates, seeds, pilot_seeds=PILOT_SEEDS):
        jobs, best = self.pilot(kind, text, rates, pilot_seeds)
        if best is None:
            return jobs
        return [self.job(replace(kind, lr=best, seed=seed), text) for seed in seeds]

    def plan(self):
        first, second = self.texts
        # Another process trains the widths at the same time, so they are last here.
        for seeds in (SEEDS[:6], SEEDS):
            for head, rates in STABLE_RATES.items():
                kind = Run(layers=1, head=head)
                yield "stability", [
                    self.job(replace(kind, lr=rate, seed=seed), first)
                    for rate in rates for seed in seeds
                ]
        yield "second text", [Job({"measure": "text"}, second, measure_text,
                                  (self.out, second, SMALL), 60)]
        for seeds in (SEEDS[:6], SEEDS):
            for width in (64, 128):
                for head in HEADS3:
                    kind = Run(width=width, layers=1, head=head)
                    rates = WIDTH_RATES[width, 1, head]
                    yield "second text", self.kind(kind, second, rates, seeds)
        for seed in SEEDS[:6]:
            jobs = [self.job(Run(layers=1, head="untied", lr=0.004, seed=seed), first)]
            for after in (267, 533):
                run = Run(layers=1, lr=0.004, seed=seed, untie_after=after)
                jobs.append(self.job(run, first))
                jobs.append(self.job(replace(run, new_averages=True), first))
            yield "untie later", jobs
        tied = Run(layers=1, lr=0.004)
        untied = Run(layers=1, lr=0.008, head="untied")
        for factor in (1.0, 5.0, 0.2, 25.0, 0.0):
            kind = replace(tied, input_gradient=factor)
            yield "gradients", [self.job(replace(kind, seed=s), first) for s in SEEDS[:6]]
            yield "gradients", [
                self.compare(replace(untied, seed=a), replace(kind, seed=b), first)
                for a, b in PAIRS
            ]
        for batch in (4, 64):
            kind = replace(tied, input_gradient=1.0, batch=batch)
            yield "gradients", [self.job(replace(kind, seed=s), first) for s in SEEDS[:6]]
        yield "ceilings", [
            self.compare(replace(untied, seed=a), replace(untied, seed=b), first)
            for a, b in zip(SEEDS[::2], SEEDS[1::2])
        ]
        jobs = []
        for run in pilot():
            if run.text != "tenth":
                jobs += [self.job(replace(run, seed=seed), first) for seed in PILOT_SEEDS]
        yield "pilots of the first grid", jobs
        for seeds in (SEEDS[:6], SEEDS):
            for width, layers in WIDTHS:
                for head in HEADS3:
                    kind = Run(width=width, layers=layers, head=head)
                    yield "width", self.kind(kind, first, WIDTH_RATES[width, layers, head], seeds)
            if seeds == SEEDS[:6]:
                for width, layers in WIDTHS:
                    full = Run(width=width, layers=layers, head="untied")
                    _, best = self.pilot(full, first, WIDTH_RATES[width, layers, "untied"])
                    if best is not None:
                        kind = replace(full, width=EQUAL[width, layers], lr=best)
                        yield "equal", [self.job(replace(kind, seed=s), first) for s in seeds]
        for head in HEADS3:
            kind = Run(width=256, layers=1, head=head)
            yield "256", self.kind(
                kind, first, WIDTH_RATES[256, 1, head], SEEDS[:3], PILOT_SEEDS[:2]
            )

    def missing(self):
        self.read_others()
        seen = set()
        for stage, jobs in self.plan():
            for job in jobs:
                if job.key not in self.lines and job.key not in seen:
                    seen.add(job.key)
                    yield stage, job


def documentation():
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs))


def main():
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    out = Path(sys.argv[2])
    second = documentation()
    file = out / "runs.jsonl"
    for each in (text, second):
        prepare(each, 512, out)
    queue = Queue(out, (text_name(text), text_name(second)))
    queue.lines = engine.read_lines(file)
    queue.others = [Path(path) for path in sys.argv[3:] if path.endswith("jsonl")]
    if "--list" in sys.argv:
        totals = {}
        for stage, job in queue.missing():
            n, work = totals.get(stage, (0, 0))
            totals[stage] = (n + 1, work + job.work)
        for stage, (n, work) in totals.items():
            print(stage, n, "runs", round(work / 60), "minutes of one core")
        return
    with engine.processes(WORKERS) as pool:
        running = {}
        while True:
            keys = {job.key for job in running.values()}
            for stage, job in queue.missing():
                if len(running) == WORKERS:
                    break
                if job.key not in keys:
                    running[pool.submit(engine.measured, job)] = job
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                line = future.result()
                with open(file, "a", encoding="utf-8") as opened:
                    opened.write(json.dumps(line) + "\n")
                queue.lines[job.key] = line["result"]
                print(time.strftime("%H:%M:%S"), json.dumps(job.run), line["result"].get("loss"),
                      flush=True)


if __name__ == "__main__":
    main()
