"""Say whether a language model of any kind is tied.

The verdict is tied, untied, conflict or not known: by config.json, by the files, and as other
programs read them. transformers 4 and 5 were measured; of vLLM and programs like it the rule is
known, which was not run. No model is loaded or downloaded: of a model on the hub, config.json and
the headers of the weights are read, and 32 rows of the matrices if the files have several. Whether
the rest of the files loads is not looked at. The exit code is 0 only if each model is tied or
untied for all who read it, 1 for a conflict and for what is not known, and 2 if a model cannot be
read.

examples:
  tiedgpt check my-model other-model
  tiedgpt check HuggingFaceTB/SmolLM2-135M --json
"""

import argparse
from collections.abc import Iterator, Sequence

from ..anymodel.headers import open_any
from ..anymodel.ties import Report, tie_report
from ..checkpoints import Opened
from ..errors import ArgumentError, TiedGPTError, one_line
from . import options
from .output import Cells, fill, print_error, print_json, print_table, rows_of_fields

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a directory, a file of weights, a config.json, or a name, such as owner/name on the hub",
    )
    options.add(parser, "json")


def run(args: argparse.Namespace) -> None:
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
    """Print what is to be said of each model, and a table with a column for each."""
    names = [one_line(report["model"]) for report in reports]
    for name, report in zip(names, reports, strict=True):
        for answer in answers(report):
            lines = [one_line(line) for line in answer.split("\n")]
            print(fill(f"{name}: " + "\n".join(lines)))
    for not_looked_at in dict.fromkeys(report["not_looked_at"] for report in reports):
        if not_looked_at is not None:
            print(fill(f"Not looked at: {not_looked_at}."))
    print()
    rows: list[Cells] = [("", *names)]
    for label, *cells in rows_of_fields(FIELDS, [in_words(report) for report in reports]):
        rows.append((label, *(one_line(cell) for cell in cells)))  # the files' own names
    print_table(rows)


def said(flag: Report) -> str:
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
        "flag": {**flag, "said": said(flag)},
        "holds": HELD.get(report["holds"], "not known"),
        "transformers4": report["transformers4"] or "not known",
        "transformers": report["transformers"] or "not known",
        "others": report["others"] or "not known",
        "wasted_bytes": report["wasted_bytes"] or None,
    }
    more_names = [matrix["name"] for matrix in report["more"] if matrix is not None]
    words["more_names"] = ", ".join(more_names) or None
    matrix = report["embedding"] or report["head"]
    if matrix is not None:
        words["matrix"] = " x ".join(f"{size:,}" for size in matrix["shape"])
    compared = report["compared_rows"]
    if compared is not None:
        words["equal_rows"] = f"{report['equal_rows']:,} of {compared:,}"
        if compared < matrix["shape"][0]:
            words["equal_rows"] += " sampled"
    if report["holds"] == "equal" and report["wasted_bytes"] == 0:
        words["holds"] = "one, by two names"
    if report["parameters"] is not None:
        words["more_percent"] = f"{report['parameters']['more_percent']:.1f}%"
        words["less_percent"] = f"{report['parameters']['less_percent']:.1f}%"
    return report | words


def answers(report: Report) -> Iterator[str]:
    """The verdict and what is lost; below it, what mends it; which matrices are one."""
    verdict = report["verdict"]
    if report["tensors"] == 0:
        yield f"{verdict}: config.json alone was read, and says {said(report['flag'])}"
    elif verdict == "no head":
        yield f"no head: config.json says {report['flag']['class_without_head']}"
    elif verdict == "conflict":
        lines = [f"conflict: {report['conflict']}", *report["mend"].splitlines()]
        yield "\n  ".join(lines)
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
