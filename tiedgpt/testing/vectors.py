"""The reference values for other languages, as an assertion."""

from collections.abc import Mapping
from typing import Any

from ..comparison.vectors import judge


def assert_vectors(answers: Mapping[str, Any]) -> None:
    """Raise AssertionError, which says what is wrong, if an answer to the reference values is.

    answers: the name of a case of tests/vectors/v2 -> the answer of another GPT-2: an array, nested
    lists, or a text. Cases that are not given are not looked at. Raises ArgumentError if none is
    given, and for a name that is no case.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = judge(answers)
    if report["wrong"] == 0:
        return
    lines = [report["sentence"], ""]
    for case in report["cases"]:
        if case["status"] == "wrong":
            lines.append(f"{case['name']}: {case['sentence']}")
    for group, mistakes in report["mistakes"].items():
        lines += [f"{group}: {sentence}" for sentence in mistakes]
    raise AssertionError("\n".join(lines))
