"""What is said of ports that nobody here wrote, from their logits and from 40 greedy tokens.

`pytest tests/comparison/test_public_ports.py -m '' -s` prints the table.
"""

from functools import cache

import numpy as np
import pytest
from support.other_gpt2 import OtherGPT2
from support.public_ports import PORTS

from tiedgpt import compare
from tiedgpt.comparison.vectors import DIRECTORY, Vectors, judge

SLOW = pytest.mark.slow
VECTORS = Vectors(DIRECTORY)
MODEL = VECTORS.models["tied"]
TEXTS = [case for case in VECTORS.cases if case["name"].startswith("greedy/tied")]


def greedy(theirs, case):
    prompt = case["given"]["prompt"]
    ids = list(prompt)
    for _ in range(case["given"]["tokens"]):
        ids.append(int(np.argmax(theirs(np.array(ids))["logits"][-1])))
    return ids[len(prompt) :]


# Several ports have the same steps, (name, function) of each.


@cache
def report_of_logits(steps):
    ids = np.random.default_rng(3).integers(MODEL.config.vocab_size, size=(2, 17))
    return compare(MODEL, OtherGPT2(MODEL, **dict(steps))(ids)["logits"], ids)


@cache
def report_of_tokens(steps):
    theirs = OtherGPT2(MODEL, **dict(steps))
    return judge({case["name"]: greedy(theirs, case) for case in TEXTS})


def marks_of(number):
    """The slow tests judge a port that has several mistakes, or is the same as an earlier one."""
    port = PORTS[number]
    has_several = len(port.mistakes) > 1 or port.has_others
    is_repeated = port.steps in [other.steps for other in PORTS[:number]]
    return SLOW if has_several or is_repeated else ()


@pytest.mark.parametrize(
    "port",
    [pytest.param(port, marks=marks_of(n), id=port.name) for n, port in enumerate(PORTS)],
)
def test_the_verdict_from_logits_is_true(port):
    report = report_of_logits(frozenset(port.steps.items()))
    print(f"\n{port.name}, {port.language}: {report.verdict()}; {report.diagnosis}")
    assert (report.first is None) == port.is_right, str(report)
    named = [line for line in report.diagnosis if "yours " in line]
    for line in named:
        assert any(mistake in line for mistake in port.mistakes), f"a wrong name: {line}"
    if not port.has_others:
        for mistake in port.mistakes:
            assert any(mistake in line for line in named), f"not named: {mistake}"


@pytest.mark.parametrize(
    "port",
    [port if n == 0 else pytest.param(port, marks=SLOW) for n, port in enumerate(PORTS)],
    ids=lambda port: port.name,
)
def test_the_verdict_from_tokens_is_true(port):
    """A right port is never a defect. What a wrong one is said to be gives the same tokens."""
    report = report_of_tokens(frozenset(port.steps.items()))
    mistakes = report["mistakes"].get("greedy/tied", [])
    print(f"\n{port.name}, {port.language}: {report['sentence']}; {mistakes}")
    is_right = port.is_right or not port.is_seen_in_tokens
    assert (report["wrong"] == 0) == is_right
    assert report["tie_break"] == 0, "the margins are wide"
    if len(port.mistakes) == 1 and not port.has_others:
        assert any(port.mistakes[0] in line for line in mistakes)
