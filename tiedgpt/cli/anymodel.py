"""The commands check and params: is a language model of any kind tied, and how large is it?"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..anymodel.headers import HubModel, open_any
from ..anymodel.ties import Report, size_report, tie_report
from ..checkpoints import Opened
from ..checkpoints.model_names import DEFAULT_MODEL, known_config
from ..errors import (
    ArgumentError,
    CheckpointError,
    TiedGPTError,
    counted,
    one_line,
    shape_in_words,
)
from ..gpt2.config import Config
from ..gpt2.parameters import count_matrices
from . import options
from .inputs import open_model
from .output import (
    Cells,
    fill,
    megabytes,
    percent,
    print_error,
    print_json,
    print_table,
    rows_of_fields,
    shown,
)

FIELDS = {  # a place in the report -> the label of its row
    "flag.kind": "kind",
    "flag.class": "class",
    "flag.said": "config.json",
    "flag.place": "where it says so",
    "embedding.name": "embedding",
    "head.name": "head",
    "more_names": "other matrices",
    "matrix": "their shape",
    "holds": "the files hold",
    "equal_rows": "equal rows",
    "transformers4": "transformers 4 reads",
    "transformers": "transformers 5 reads",
    "others": "vLLM-like, by rule",
    "parameters.tied.total": "parameters if tied",
    "parameters.untied.total": "parameters if untied",
    "parameters.difference": "the tie saves",
    "more_percent": "untied has more by",
    "less_percent": "tied has less by",
    "wasted_bytes": "bytes of the copy",
}
HELD = {
    "embedding": "one matrix",
    "head": "one matrix",
    "equal": "two equal ones",
    "different": "two different ones",
    "not comparable": "two, quantised",
}


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a directory, a file of weights, a config.json, or a name, such as owner/name on the hub",
    )
    options.add(parser, "json")


def run_check(args: argparse.Namespace) -> None:
    """Say whether a language model of any kind is tied.

    The verdict is tied, untied, conflict or not known: by config.json, by the files, and as other
    programs read them. transformers 4 and 5 were measured; of vLLM and programs like it the rule is
    known, which was not run. No model is loaded or downloaded: of a model on the hub, config.json
    and the headers of the weights are read, and 32 rows of the matrices if the files have several.
    Whether the rest of config.json and of the files loads is not looked at. A verdict is tied, or
    untied, only if the model is so for each version of transformers that has the class, and for
    programs that go by the flag, if they have a rule for the class. The exit code is 0 if each
    model is tied, or untied, or has no head by its class. It is 1 for a conflict and for what is
    not known, and 2 if a model cannot be read.

    examples:
      tiedgpt check my-model other-model
      tiedgpt check HuggingFaceTB/SmolLM2-135M --json
    """
    if not args.models:
        raise ArgumentError("expected a MODEL: a directory, a file, or owner/name of the hub")
    reports: list[Report] = []
    for name in args.models:
        try:
            model = open_any(name)
            adapter = model.adapter if isinstance(model, Opened) else ""
            reports.append({**tie_report(name, model), "adapter": adapter or None})
        except TiedGPTError as error:
            reports.append({"model": name, "error": str(error)})
            print_error(error)
    read = [report for report in reports if "error" not in report]
    if args.json:
        print_json({"models": reports})
    elif read:
        print_reports(read)
    if len(read) < len(reports):
        raise SystemExit(2)
    if not all(report["verdict"] in ("tied", "untied", "no head") for report in read):
        raise SystemExit(1)


def print_reports(reports: Sequence[Report]) -> None:
    """Print the verdict on each model and its mends, then a table with a column for each."""
    names = [one_line(report["model"]) for report in reports]
    for name, report in zip(names, reports, strict=True):
        for answer in answers(report):
            print(fill(f"{name}: {one_line(answer)}"))
        for mend in report["mends"]:
            prose, _, code = mend["text"].partition("\n")  # a line for people, then Python, if any
            # A flag and its value stay on one line.
            unbroken = prose.replace('": ', '":\N{NO-BREAK SPACE}')
            print(fill(f"  {unbroken}").replace("\N{NO-BREAK SPACE}", " "))
            if code:  # never wrapped or indented, so that it can be pasted
                print(code)
    for not_looked_at in dict.fromkeys(report["not_looked_at"] for report in reports):  # each once
        if not_looked_at is not None:
            print(fill(f"Not looked at: {not_looked_at}."))
    print()
    rows: list[Cells] = [("", *names)]
    for label, *cells in rows_of_fields(FIELDS, [in_words(report) for report in reports]):
        rows.append((label, *(one_line(cell) for cell in cells)))  # names in files may be any text
    print_table(rows)


def flag_in_words(flag: Report) -> str:
    """What config.json says of the tie, from a "flag" of the report."""
    if flag["tied"] is None:
        return "not known"
    head = "tied" if flag["tied"] else "untied"
    return head if flag["place"] else f"{head} by default"


def in_words(report: Report) -> Report:
    """A report for the table: words in place of values that only a program understands.

    The table leaves out what is None.
    """
    flag = report["flag"]
    words: Report = {
        "flag": {**flag, "said": flag_in_words(flag)},
        "holds": HELD.get(report["holds"], "not known"),
        "transformers4": report["transformers4"] or "not known",
        "transformers": report["transformers"] or "not known",
        "others": report["others"] or "not known",
        "wasted_bytes": report["wasted_bytes"] or None,
    }
    # "without_class" has the fields of the versions of transformers without the class.
    words |= dict.fromkeys(report["without_class"], "no such class")
    more_names = [matrix["name"] for matrix in report["more"] if matrix is not None]
    words["more_names"] = ", ".join(more_names) or None
    matrix = report["embedding"] or report["head"]
    if report["holds"] is not None:
        words["matrix"] = shape_in_words(matrix["shape"])
    compared = report["compared_rows"]
    if compared is not None:
        words["equal_rows"] = f"{report['equal_rows']:,} of {compared:,}"
        if compared < matrix["shape"][0]:  # of a model on the hub, few rows are read
            words["equal_rows"] += " sampled"
    if report["holds"] == "equal" and report["wasted_bytes"] == 0:
        words["holds"] = "one, by two names"
    if report["parameters"] is not None:
        words["more_percent"] = f"{report['parameters']['more_percent']:.1f}%"
        words["less_percent"] = f"{report['parameters']['less_percent']:.1f}%"
    return report | words


def answers(report: Report) -> Iterator[str]:
    """The verdict and what is lost; below it, which matrices are one."""
    verdict = report["verdict"]
    if report["tensors"] == 0:
        yield f"{verdict}: config.json alone was read, and says {flag_in_words(report['flag'])}"
    elif verdict == "no head":
        leaves_out = ""
        if report["head"] is not None:
            leaves_out = f"; it leaves out {report['head']['name']}, which the files have"
        name = report["flag"]["class_without_head"]
        yield f"no head: config.json says {name}, which has no output matrix{leaves_out}"
    elif verdict == "conflict":
        yield f"conflict: {report['conflict']}"
    elif verdict == "not known":
        by_rule = ""
        if report["others"] is not None:
            by_rule = f"; {report['others']}, if the program goes by the flag"
        yield f"not known: {report['not_measured']}{by_rule}"
    else:
        yield verdict
    if report["adapter"]:
        yield report["adapter"]
    for names in report["one"]:
        if len(names) > 1:
            yield f"one matrix for transformers 5: {', '.join(names)}"


def add_params_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a known name, which needs no files, a directory, a file of weights, a config.json or "
        "owner/name of the hub (default: the variable TIEDGPT_MODEL, else gpt2)",
    )
    parser.add_argument(
        "--vocab",
        metavar="V",
        type=options.whole_number,
        help="tokens in the vocabulary, as 50000 or 50k",
    )
    parser.add_argument(
        "--dim", metavar="D", type=options.whole_number, help="width of the residual stream"
    )
    parser.add_argument(
        "--total",
        metavar="N",
        type=options.whole_number,
        help="parameters of the whole model, tied or untied, as 7B",
    )
    options.add(parser, "json")


def run_params(args: argparse.Namespace) -> None:
    """Count the parameters of models, tied and untied.

    Downloads no weights. A model that is no GPT-2 is counted by the headers of its weights, or by
    config.json where its kind is known. The class that loads the files may leave some of the
    tensors out, and have others: this is not looked at. --vocab and --dim count only the token
    embedding and the output head, of that size.

    examples:
      tiedgpt params
      tiedgpt params gpt2 gpt2-xl
      tiedgpt params EleutherAI/pythia-160m
      tiedgpt params --vocab 50000 --dim 4096 --total 7e9
    """
    if args.vocab is None and args.dim is None and args.total is None:
        reports = [count_model(name) for name in args.models or [None]]
        if args.json:
            print_json(reports[0] if len(reports) == 1 else {"models": reports})
        elif len(reports) == 1:
            print_model(reports[0])
        else:
            print_table(rows_of_models(reports))
        return
    if args.models:
        raise ArgumentError(
            "MODEL cannot be given with --vocab, --dim or --total, which count two matrices alone"
        )
    if args.vocab is None or args.dim is None:
        raise ArgumentError("to count without a model, both --vocab and --dim are needed")
    count_two_matrices(args.vocab, args.dim, args.total, args.json)


def count_model(source: str | None) -> Report:
    """The parameters of a model with both heads: parameters_report of a GPT-2, else size_report.

    Without a source: of the model that the environment names, else of gpt2.
    """
    name = source
    if name is None:
        name = os.environ.get(DEFAULT_MODEL) or "gpt2"
    config = known_config(name)  # a known name needs no files
    if config is None:
        try:
            model: Opened | HubModel = open_any(name, weights=False)
        except CheckpointError:
            # open_model raises again. Its error says if the name is that of the environment.
            model = open_model(source, weights=False)
        if model.config_json.get("model_type", "gpt2") != "gpt2":
            return size_report(name, model)
        if isinstance(model, HubModel):  # a GPT-2: all files but the weights are downloaded
            model = open_model(source, weights=False)
        config = model.config
        if model.has_weights:
            model.check_weights()
    from ..study.reports import parameters_report  # here, because `check` needs nothing of study/

    return {"model": name, **parameters_report(config)}


def print_model(report: Report) -> None:
    """Print the counts of one model: a row for each group of a GPT-2, else the total alone."""
    name = report["model"]
    if "config" in report:
        config = Config(**report["config"])
        title = (
            f"{name}: {config.head}; vocabulary {config.vocab_size:,}, context {config.n_ctx:,}, "
            f"width {config.n_embd:,}, {counted(config.n_layer, 'layer')}, "
            f"{counted(config.n_head, 'head')}"
        )
    else:
        V, D = report["shape"]
        kind = f"{report['flag']['kind']}, {flag_in_words(report['flag'])}"
        title = f"{name}: {kind}; vocabulary {V:,}, width {D:,}"
    less = percent(report["difference"] / report["untied"]["total"])
    more = percent(report["difference"] / report["tied"]["total"])
    share = f", {less} of the untied model. Untied has {more} more"
    print_counts(title, report, share, with_shares="config" in report)
    if "source" in report:
        print(fill(f"Counted from {report['source']}."))
        if report["not_looked_at"] is not None:
            print(fill(f"Not looked at: {report['not_looked_at']}."))


def rows_of_models(reports: Sequence[Report]) -> list[Cells]:
    """The rows of a table with a column for each model."""
    columns = [("parameters", "tied", "untied", "difference", "of tied", "of untied")]
    for report in reports:
        tied, untied = report["tied"]["total"], report["untied"]["total"]
        saved = report["difference"]
        numbers = (f"{tied:,}", f"{untied:,}", shown("parameters", saved, "+"))
        name = one_line(report["model"])
        columns.append((name, *numbers, percent(saved / tied), percent(saved / untied)))
    return list(zip(*columns, strict=True))


def count_two_matrices(vocab: int, dim: int, total: int | None, as_json: bool) -> None:
    """Print the size of the embedding and the output head, and what a tie saves of `total`."""
    report = count_matrices(vocab, dim, total)
    if as_json:
        print_json({"vocab": vocab, "dim": dim, "total": total, **report})
        return
    share = ""
    if total is not None:
        if_tied = percent(report["difference"] / (total + report["difference"]))
        size = short(total)
        share = f", {if_tied} of the untied model if {size} is the tied one"
        if total >= report["untied"]["total"]:
            of_untied = percent(report["difference"] / total)
            share = (
                f", {of_untied} of an untied model of {size} ({if_tied} if {size} is the tied one)"
            )
    # Two matrices are not a model, so their shares of it are left out.
    print_counts(f"vocabulary {vocab:,}, width {dim:,}", report, share, with_shares=False)


def print_counts(title: str, report: Mapping[str, Any], share: str, with_shares: bool) -> None:
    """Print a title, a table of the counts, and what a tie saves.

    share: the end of the last line, such as ", 23.7% of the untied model". with_shares: whether the
    table has the column of shares.
    """
    print(fill(one_line(title)))
    print()
    rows = rows_of_counts(report)
    if not with_shares:
        rows = [row[:-1] for row in rows]  # all columns but the last
    print_table(rows)
    print()
    tied = short(report["tied"]["total"], "#.4g")
    untied = short(report["untied"]["total"], "#.4g")
    saved = short(report["difference"])
    print(fill(f"Tied {tied}, untied {untied}: tying saves {saved}{share}."))


def rows_of_counts(report: Mapping[str, Any]) -> list[Cells]:
    """The rows of the table: each group of parameters if it is known, the total, and the bytes."""
    tied = report["tied"]
    untied = report["untied"]
    counts = {}
    for group in tied.get("groups", ()):
        counts[group] = (tied["groups"][group], untied["groups"][group])
    counts["total"] = (tied["total"], untied["total"])
    # The last column has the share of a group in the untied model.
    rows: list[Cells] = [("parameters", "tied", "untied", "difference", "of untied")]
    for label, (by_tied, by_untied) in counts.items():
        sizes = [shown("parameters", size) for size in (by_tied, by_untied)]
        difference = shown("parameters", by_untied - by_tied, "+")
        rows.append((label, *sizes, difference, percent(by_untied / untied["total"])))
    for label, size in (("float32 bytes", 4), ("bfloat16 bytes", 2)):
        sizes = [megabytes(size * report[head]["total"]) for head in ("tied", "untied")]
        rows.append((label, *sizes, f"+{megabytes(size * report['difference'])}", ""))
    return rows


def short(n: int, form: str = ".1f") -> str:
    """A count with a unit.

    >>> short(204_800_000), short(7_000_000_000), short(999_950), short(96)
    ('204.8M', '7.0B', '1.0M', '96')
    >>> short(163_037_184, "#.4g")
    '163.0M'
    """
    if n < 1000:
        return str(n)
    size = float(n)
    for letter in "KMBT":
        size /= 1000
        rounded = f"{size:{form}}"
        text = f"{rounded}{letter}"
        if float(rounded) < 1000:  # else 999,950 would be 1000.0K, not 1.0M
            break
    return text
