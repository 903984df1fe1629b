"""`tiedgpt compare --vectors ANSWERS`: the reference values, as a table by case or JSON."""

import argparse
from pathlib import Path

from ..comparison.vectors import VectorsReport, judge, read_answers
from ..errors import check_file_name, one_line
from .output import fill, print_json
from .tables import Cells, print_table

MOST_MISTAKES = 5  # that are printed for each group of cases; --json has all


def run(args: argparse.Namespace) -> None:
    check_file_name(args.vectors)
    report = judge(read_answers(Path(args.vectors)))
    if args.json:
        print_json(report)
    else:
        print_report(report)
    if report["wrong"]:
        raise SystemExit(1)


def print_report(report: VectorsReport) -> None:
    """A row for each case, what is wrong with those that are, and the count."""
    rows: list[Cells] = [("", "")]
    for case in report["cases"]:
        rows.append((case["name"], case["status"]))
    print_table(rows)
    print()
    for case in report["cases"]:
        if case["sentence"]:
            print(fill(one_line(f"{case['name']}: {case['sentence']}")))
    # Mistakes are named from the logits first: two at once are, and in one layer.
    named = [group for group, mistakes in report["mistakes"].items() if mistakes]
    for group, mistakes in report["mistakes"].items():
        if not mistakes and named:
            print(fill(f"{group}: no other mistake is known: mend that of {named[0]} first"))
        elif not mistakes:
            print(fill(f"{group}: none of the known mistakes gives these answers"))
        for sentence in mistakes[:MOST_MISTAKES]:
            print(fill(f"{group}: {sentence}"))
        if len(mistakes) > MOST_MISTAKES:
            print(f"{group}: or {len(mistakes) - MOST_MISTAKES} other mistakes (--json lists them)")
    print(fill(report["sentence"]))
