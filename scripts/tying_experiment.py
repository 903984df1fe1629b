"""The tying experiment: train small models, tied and untied, with one thing varied at a time.

    python scripts/tying_experiment.py train tinyshakespeare.txt   does the runs that are missing
    python scripts/tying_experiment.py plan                        lists them
    python scripts/tying_experiment.py figures [NAME]              prints what was found
    python scripts/tying_experiment.py pictures                    draws the pictures of the page
    python scripts/tying_experiment.py registered DIRECTORY        does the registered runs

The runs are those of scripts/tying/runs.py. `train` does two at a time, with one thread each, and
appends a line for each to runs.jsonl. It may be ended at any time; the same command continues.

`registered` does the runs of scripts/tying/registered.py, one at a time, with the text that
scripts/tying/english.py has written into DIRECTORY. It appends a line for each to registered.jsonl.
It may be ended at any time as well.

`figures` and `pictures` need `pip install -e .[tying]`. --runs names another file than
scripts/tying_results/runs.jsonl, and its directory gets the pictures.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from threading import Lock, Thread
from time import process_time

from tying.runs import TEXT, Line, Results, Run, key_of, next_runs

RUNS = Path(__file__).with_name("tying_results") / "runs.jsonl"
REGISTERED = RUNS.with_name("registered.jsonl")
WORKERS = 2
COMMANDS = ("train", "plan", "figures", "pictures", "registered", "worker")


def read_lines(path: Path) -> Results:
    """The results of runs.jsonl by key.

    A killed process leaves an incomplete last line, which is removed from the file.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    complete_size = data.rfind(b"\n") + 1  # a line is complete if it ends in a line break
    if complete_size < len(data):
        os.truncate(path, complete_size)
    results: Results = {}
    for text in data[:complete_size].splitlines():
        line = json.loads(text)
        results[key_of(line["run"], line["text"])] = line["result"]
    return results


class Queue:
    """The runs that are missing. Each worker takes the next one and adds its result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = read_lines(path)
        self.running: list[Run] = []
        self.lock = Lock()

    def take(self) -> Run | None:
        """The next run; None if all that are known are done or running."""
        with self.lock:
            for run in next_runs(self.results):
                if run not in self.running:
                    self.running.append(run)
                    return run
            return None

    def add(self, run: Run, result: Line) -> None:
        line = json.dumps({"run": run.as_json, "text": TEXT, "result": result})
        with self.lock:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
            self.results[key_of(run.as_json)] = result
            self.running.remove(run)
            print(line, flush=True)


def work(corpus: Path, queue: Queue) -> None:
    """Give runs to another process, one after the other, until the queue has none.

    The process reads a run from each line of its input, and writes the result to its output. If
    this process is killed, the input ends, and the other process ends after its run.
    """
    command = [sys.executable, __file__, "worker", str(corpus)]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=one_thread, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        while run := queue.take():
            print(json.dumps(asdict(run)), file=worker.stdin, flush=True)
            result = worker.stdout.readline()
            if not result:  # the other process has ended, and its run stays in queue.running
                return
            queue.add(run, json.loads(result))


def be_worker(corpus: Path, lines: Iterable[str]) -> None:
    """Do the run of each line, and print its result."""
    from tying.trainer import do_run

    text = corpus.read_bytes().decode("utf-8")
    for line in lines:
        result = do_run(Run(**json.loads(line)), text)
        try:
            print(json.dumps(result), flush=True)
        except BrokenPipeError:  # the process that reads it has ended
            os._exit(1)  # a usual end would flush the output, and fail again


def train(corpus: Path, runs: Path) -> None:
    """Do all runs that are missing."""
    from tying.trainer import name_of

    name = name_of(corpus.read_bytes().decode("utf-8"))
    if name != TEXT:
        sys.exit(f"{corpus}: expected tinyshakespeare.txt, whose SHA-256 begins with {TEXT}")
    queue = Queue(runs)
    # A daemon thread does not keep this process from ending, as by Ctrl-C.
    threads = [Thread(target=work, args=(corpus, queue), daemon=True) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues with the missing runs")
    if queue.running:
        lost = [run.as_json for run in queue.running]
        sys.exit(f"a worker ended in the middle of {lost}; the same command continues")


def do_registered(directory: Path, path: Path) -> None:
    """Do all registered runs that are missing, one at a time."""
    from tying import english, registered

    for name, expected in english.FILES.items():
        english.check(directory / name, expected)
    results = read_lines(path)
    while (run := next(registered.next_runs(results), None)) is not None:
        start = process_time()
        result = registered.do_run(run, directory)
        seconds = round(process_time() - start, 1)  # of a processor
        line = {"run": run.as_json, "text": registered.TEXT, "seconds": seconds, "result": result}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        results[key_of(run.as_json, registered.TEXT)] = result
        loss = result.get("bits per byte", "diverged")
        print(f"{seconds:7} s  {loss} bits per byte  {json.dumps(run.as_json)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("argument", nargs="?", default="", help="a text, or a part of names")
    parser.add_argument("--runs", type=Path)
    args = parser.parse_args()
    if args.runs is None:
        args.runs = REGISTERED if args.command == "registered" else RUNS

    if args.command == "worker":
        be_worker(Path(args.argument), sys.stdin)
    elif args.command == "train":
        train(Path(args.argument), args.runs)
    elif args.command == "registered":
        do_registered(Path(args.argument), args.runs)
    elif args.command == "plan":
        for run in next_runs(read_lines(args.runs)):
            print(json.dumps(run.as_json))
    elif args.command == "figures":
        from tying.differences import all_figures

        for name, figure in all_figures(read_lines(args.runs)).items():
            if args.argument in name:
                print(f"{name:40} {figure}")
    else:
        from tying.pictures import draw_all

        draw_all(read_lines(args.runs), args.runs.parent)


if __name__ == "__main__":
    main()
