"""The tying experiment: train small models, tied and untied, with one thing varied at a time.

    python scripts/tying_experiment.py run w64-0.1:tied tinyshakespeare.txt --seed 1
                             does one run, and shows it beside the published one: 20 seconds
    python scripts/tying_experiment.py plan      lists the names of all runs
    python scripts/tying_experiment.py figures w64
                             prints what was found, for the names that have "w64" in them
    python scripts/tying_experiment.py pictures  draws the pictures of the page
    python scripts/tying_experiment.py train tinyshakespeare.txt --runs my-runs.jsonl
                             does all runs that my-runs.jsonl does not have: 15 hours of two cores
    python scripts/tying_experiment.py tables tinyshakespeare.txt
                             measures what tables know, over seeds, where that is missing
    python scripts/tying_experiment.py registered DIRECTORY
                             does the registered runs that are missing: 50 hours of one core

    python scripts/tying_experiment.py verdicts  says which registered predictions hold

`run` takes a run's row and head, as figures are named; its learning rate and its start are those
that the pilots chose. With a registered cell and arm, such as 512-1:tied, it takes the directory of
that text in place of tinyshakespeare.txt.

`train` does two runs at a time, with one thread each, and appends a line for each to the file that
--runs names. It may be ended at any time; the same command continues. The published runs are
scripts/tying_results/runs.jsonl; other commands read them if --runs names no other file.

`registered` does the runs of scripts/tying/registered.py, one at a time, with the text that
scripts/tying/english.py has written into DIRECTORY. It appends a line for each to
scripts/tying_results/registered.jsonl. It may be ended at any time as well.

`tables` trains some of the models again, measures what their tables know, and appends a line for
each to scripts/tying_results/tables.jsonl: half an hour of one core.

`figures`, `pictures` and `verdicts` need `pip install -e .[tying]`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock, Thread
from time import process_time

from tying.runs import ROW, ROWS, TEXT, Line, Results, Run, key_of, next_runs, pilot

RUNS = Path(__file__).with_name("tying_results") / "runs.jsonl"
REGISTERED = RUNS.with_name("registered.jsonl")
TABLES = RUNS.with_name("tables.jsonl")
WORKERS = 2


class ExperimentError(Exception):
    """What the user can mend, in one line."""


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

    text = read_text(corpus)
    for line in lines:
        result = do_run(Run(**json.loads(line)), text)
        try:
            print(json.dumps(result), flush=True)
        except BrokenPipeError:  # the process that reads it has ended
            os._exit(1)  # a usual end would flush the output, and fail again


def train(corpus: Path, runs: Path) -> None:
    """Do all runs that are missing."""
    from tying.trainer import name_of

    if name_of(read_text(corpus)) != TEXT:
        raise ExperimentError(
            f"{corpus}: expected tinyshakespeare.txt, whose SHA-256 begins with {TEXT}"
        )
    queue = Queue(runs)
    # A daemon thread does not keep this process from ending, as by Ctrl-C.
    threads = [Thread(target=work, args=(corpus, queue), daemon=True) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        print("\nstopped; the same command continues with the missing runs", file=sys.stderr)
        raise
    if queue.running:
        lost = [run.as_json for run in queue.running]
        raise ExperimentError(f"a worker ended in the middle of {lost}; the same command continues")


def do_registered(directory: Path, path: Path) -> None:
    """Do all registered runs that are missing, one at a time."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
    from tying import registered

    check_registered_text(directory)
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


def do_tables(corpus: Path, path: Path) -> None:
    """Train and measure the models of tables.py that are missing, one at a time."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
    from tying import tables

    text = read_text(corpus)
    published, measured = read_lines(RUNS), read_lines(path)
    for run in list(tables.missing_runs(published, measured)):
        line = {"run": run.as_json, "text": TEXT, "result": tables.do_run(run, text)}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ExperimentError(f"{path}: is not text in UTF-8") from None


# ---- One run by name ----


def do_one(name: str, text: Path, seed: int) -> None:
    """Do one run, and show its losses beside those of the published line, if there is one."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
    from tying import registered

    row_name, _, head = name.partition(":")
    start = process_time()
    is_registered = any(arm.cell == row_name for arm in registered.ARMS)
    if is_registered:
        results = read_lines(REGISTERED)
        run = registered_run(row_name, head, seed, results)
        check_registered_text(text)
        result = registered.do_run(run, text)
        published = results.get(key_of(run.as_json, registered.TEXT), {})  # {} for another seed
    else:
        from tying.trainer import do_run

        results = read_lines(RUNS)
        run = run_of(row_name, head, seed, results)
        result = do_run(run, read_text(text))
        published = results.get(key_of(run.as_json), {})
    seconds = process_time() - start

    print(json.dumps(run.as_json))
    for measure in ("first loss", "early loss", "loss", "training loss", "bits per byte"):
        if measure in result:
            beside = f"published: {published[measure]}" if measure in published else ""
            print(f"{measure:14} {result[measure]:<8} {beside}".rstrip())
    print(f"{seconds:.0f} seconds of a processor")


def run_of(row_name: str, head: str, seed: int, results: Results) -> Run:
    """A final run of runs.ROWS, with the rate and the start that its pilots chose."""
    if row_name not in ROW:
        raise ExperimentError(f"{row_name}: no such row; `plan` lists them")
    row = ROW[row_name]
    if head not in row.heads:
        heads = " or ".join(f"{row_name}:{head}" for head in row.heads)
        raise ExperimentError(f"{row_name}:{head}: expected {heads}")
    pilots = pilot(row, head, results)
    if pilots is None or not pilots.is_finished:
        raise ExperimentError(f"{row_name}:{head}: its rate is not known yet")
    return pilots.final(seed)


def registered_run(cell: str, arm_name: str, seed: int, results: Results) -> Run:
    """A final run of the registered experiment."""
    from tying import registered

    arms = {arm.name: arm for arm in registered.ARMS if arm.cell == cell}
    if arm_name not in arms:
        names = " or ".join(f"{cell}:{name}" for name in arms)
        raise ExperimentError(f"{cell}:{arm_name}: expected {names}")
    runs = registered.final_runs(arms[arm_name], results)
    if runs is None:
        raise ExperimentError(f"{cell}:{arm_name}: its rate is not known yet")
    return replace(runs[0], seed=seed)


def check_registered_text(directory: Path) -> None:
    from tying import english

    try:
        for name, expected in english.FILES.items():
            english.check(directory / name, expected)
    except english.AnotherFile as error:
        raise ExperimentError(str(error)) from None


def print_plan(results: Results) -> None:
    """The names of all rows and heads, and how many of their runs are missing."""
    for row in ROWS:
        for head in row.heads:
            pilots = pilot(row, head, results)
            if pilots is None:
                print(f"{row.name}:{head:8} its start is not known yet")
                continue
            missing = sum(key_of(run.as_json) not in results for run in pilots.runs())
            print(f"{row.name}:{head:8} {missing} runs missing")


# ---- The command line ----


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="do one run by name")
    run.add_argument("name", metavar="ROW:HEAD")
    run.add_argument("text", type=Path, help="tinyshakespeare.txt, or the directory of english.py")
    run.add_argument("--seed", type=int, default=1)
    train_parser = commands.add_parser("train", help="do all runs that are missing")
    train_parser.add_argument("text", type=Path, help="tinyshakespeare.txt")
    train_parser.add_argument("--runs", type=Path, help="the file that gets the results")
    tables = commands.add_parser("tables", help="measure what tables know")
    tables.add_argument("text", type=Path, help="tinyshakespeare.txt")
    tables.add_argument("--runs", type=Path, default=TABLES)
    registered = commands.add_parser("registered", help="do the registered runs")
    registered.add_argument("directory", type=Path, help="the directory of english.py")
    registered.add_argument("--runs", type=Path, default=REGISTERED)
    for name, text in (
        ("plan", "list all runs by name"),
        ("figures", "print what was found"),
        ("pictures", "draw the pictures"),
        ("verdicts", "say which registered predictions hold"),
    ):
        reader = commands.add_parser(name, help=text)
        runs = REGISTERED if name == "verdicts" else RUNS
        reader.add_argument("--runs", type=Path, default=runs)
        if name == "figures":
            reader.add_argument("part", nargs="?", default="", help="a part of the names")
    worker = commands.add_parser("worker", help="do the runs of standard input, for `train`")
    worker.add_argument("text", type=Path)
    return parser.parse_args()


def act(args: argparse.Namespace) -> None:
    if args.command == "run":
        do_one(args.name, args.text, args.seed)
    elif args.command == "train":
        if args.runs is None:
            raise ExperimentError(
                "train: name a file for the results, such as --runs my-runs.jsonl "
                f"(the published ones are in {RUNS})"
            )
        train(args.text, args.runs)
    elif args.command == "tables":
        do_tables(args.text, args.runs)
    elif args.command == "registered":
        do_registered(args.directory, args.runs)
    elif args.command == "worker":
        be_worker(args.text, sys.stdin)
    else:
        show(args)


def show(args: argparse.Namespace) -> None:
    """The commands that train nothing."""
    results = read_lines(args.runs)
    if args.command == "plan":
        print_plan(results)
    elif args.command == "figures":
        from tying.described import registered_figures
        from tying.differences import all_figures
        from tying.tables import table_figures

        registered = read_lines(REGISTERED)
        figures = all_figures(results | registered) | table_figures(results, read_lines(TABLES))
        figures |= registered_figures(registered)
        for name, figure in figures.items():
            if args.part in name:
                print(f"{name:40} {figure}")
    elif args.command == "verdicts":
        from tying.described import print_described
        from tying.verdicts import print_verdicts

        print_verdicts(results)
        print_described(results)
    else:
        from tying.pictures import draw_all

        draw_all(results, args.runs.parent)


def main() -> int:
    try:
        act(parse())
        sys.stdout.flush()  # here, where a closed pipe can be handled
    except ExperimentError as error:
        print(f"tying_experiment.py: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        needs = f"needs {error.name}: pip install -e '.[tying]'"
        print(f"tying_experiment.py: error: {needs}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as of `| head`
        # At its end, Python flushes stdout once more. That must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports SIGPIPE
    except OSError as error:
        print(f"tying_experiment.py: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as a shell reports SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
