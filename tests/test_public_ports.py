"""What is said of ports that nobody here wrote, from their logits and from 40 greedy tokens.

`pytest tests/test_public_ports.py -m '' -s` prints the table.
"""

import numpy as np
import pytest
from support.other_gpt2 import OtherGPT2
from support.public_ports import PORTS

from tiedgpt import compare, compare_tokens
from tiedgpt.comparison.vectors import DIRECTORY, Vectors

SLOW = pytest.mark.slow
MODEL = Vectors(DIRECTORY).models["tied"]
PROMPTS = [
    case["given"]["prompt"]
    for case in Vectors(DIRECTORY).cases
    if case["name"].startswith("greedy/tied")
]
TOKENS = 40


def greedy(theirs, prompt):
    ids = list(prompt)
    for _ in range(TOKENS):
        ids.append(int(np.argmax(theirs(np.array(ids))["logits"][-1])))
    return ids[len(prompt) :]


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_the_verdict_from_logits_is_true(port):
    theirs = OtherGPT2(MODEL, **port.steps)
    ids = np.random.default_rng(3).integers(MODEL.config.vocab_size, size=(2, 17))
    report = compare(MODEL, theirs(ids)["logits"], ids)
    assert (report.first is None) == port.is_right, str(report)
    named = [line for line in report.diagnosis if "yours " in line]
    print(f"\n{port.name}, {port.language}: {report.verdict()}; {report.diagnosis}")
    if len(port.mistakes) == 1 and port.steps.keys() <= {"gelu", "norm", "pattern"}:
        assert any(port.mistakes[0] in line for line in named), str(report)
    for line in named:
        assert any(mistake in line for mistake in port.mistakes), f"a wrong name: {line}"


@pytest.mark.parametrize(
    "port",
    [p if n % 3 == 0 else pytest.param(p, marks=SLOW) for n, p in enumerate(PORTS)],
    ids=lambda port: port.name,
)
def test_the_verdict_from_tokens_is_true(port):
    """A right port is never a defect. What a wrong one is said to be gives the same tokens."""
    theirs = OtherGPT2(MODEL, **port.steps)
    verdicts = []
    mistakes = None
    for prompt in PROMPTS:
        tokens = greedy(theirs, prompt)
        report = compare_tokens(
            MODEL, prompt, tokens, greedy=True, trials=0 if port.is_right else None
        )
        verdicts.append(report["verdict"])
        if report["verdict"] == "defect":
            found = set(report["mistakes"])
            mistakes = found if mistakes is None else mistakes & found
    print(f"\n{port.name}, {port.language}: {verdicts}; {sorted(mistakes or [])[:3]}")
    if port.is_right:
        assert set(verdicts) == {"identical"}
        return
    assert "defect" in verdicts
    if len(port.mistakes) == 1 and port.steps.keys() <= {"gelu", "norm", "pattern"}:
        assert any(port.mistakes[0] in line for line in mistakes)
