"""Compare the real GPT-2 124M with numbers that others published for it, and print a report.

The numbers are in tests/goldens/gpt2-124M.json, each with its source.

    python scripts/check_gpt2.py --download     # or without, if gpt2 is on this machine
    python scripts/check_gpt2.py DIRECTORY
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tiedgpt
from tiedgpt.checkpoints import find_model
from tiedgpt.checkpoints.places import find_here
from tiedgpt.evaluation import token_losses

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "goldens" / "gpt2-124M.json"


@dataclass(frozen=True)
class Check:
    """A comparison of the model with published numbers."""

    name: str
    difference: float  # the largest one
    allowed: float

    @property
    def is_right(self) -> bool:
        return bool(self.difference <= self.allowed)  # nan is not an agreement


def checks(model: tiedgpt.GPT2, published: dict[str, Any]) -> Iterator[Check]:
    """The comparisons with each of the published examples. Some have the same name."""
    prompts = published["last_position_logits"]
    for example in prompts["examples"]:
        yield from check_logits(model, example, prompts["suggested_tolerance"])
    for example in published["greedy"]:
        yield check_greedy(model, example)
    yield check_final_hidden(model, published["final_hidden"])
    for example in published["mean_loss"]:
        yield check_loss(model, example)


def check_logits(model: tiedgpt.GPT2, example: dict[str, Any], tolerance: float) -> Iterator[Check]:
    """Compare the logits after a prompt: some sums of all, the first 8, and the ten largest."""
    logits = model(example["ids"])[-1].astype(np.float64)
    largest = logits.max()
    their_top10 = []
    their_top10_logits = []
    for token, _text, logit in example["top10"]:  # the most likely first
        their_top10.append(token)
        their_top10_logits.append(logit)
    ours = [
        largest + np.log(np.exp(logits - largest).sum()),
        logits.mean(),
        largest,
        logits.min(),
        *logits[:8],
        *logits[their_top10],
    ]
    theirs = [
        example["logsumexp"],
        example["mean_logit"],
        example["max_logit"],
        example["min_logit"],
        *example["first8_logits"],
        *their_top10_logits,
    ]
    difference = np.abs(np.subtract(ours, theirs)).max()
    yield Check("logits after a prompt", difference, tolerance)

    our_top10 = np.argsort(-logits)[:10]
    count = np.sum(our_top10 != their_top10)
    yield Check("ten most likely tokens that differ", count, allowed=0)


def check_greedy(model: tiedgpt.GPT2, example: dict[str, Any]) -> Check:
    """Compare the tokens that follow a prompt. "output_ids" begins with the prompt."""
    ids = example["ids"]
    theirs = example["output_ids"][len(ids) :]
    ours = list(tiedgpt.generate(model, ids, max_new_tokens=len(theirs), greedy=True))
    count = sum(our != their for our, their in zip(ours, theirs, strict=True))
    return Check("greedy tokens that differ", count, allowed=0)


def check_final_hidden(model: tiedgpt.GPT2, example: dict[str, Any]) -> Check:
    """Compare the first numbers of the final hidden state of the first token."""
    theirs = example["values"]
    of_first_token = model.final(example["ids"])[0]
    ours = of_first_token[: len(theirs)]
    return Check("final hidden state", np.abs(ours - theirs).max(), example["tolerance"])


def check_loss(model: tiedgpt.GPT2, example: dict[str, Any]) -> Check:
    """Compare the mean loss of a text, which may be cut into a "batch" of B rows of T tokens."""
    ids = example["ids"]
    if "batch" in example:
        B, T = example["batch"]
    else:
        B = 1
        T = len(ids) - 1
    losses = []
    for start in range(0, B * T, T):
        row = ids[start : start + T + 1]  # the last one is a target only
        # A row fits in the context, so it is one window, and the stride does not matter.
        losses.append(token_losses(model, row, stride=1))
    source, _, _ = example["source"].partition(":")  # without the details
    difference = abs(np.mean(losses) - example["loss"])
    return Check(f"loss, {source}", difference, example["tolerance"])


def print_verdicts(results: list[Check]) -> int:
    """Print a line for each name, with the largest difference. Return how many do not agree.

    Checks with the same name allow the same difference.
    """
    allowed = {result.name: result.allowed for result in results}
    failed = 0
    for name in allowed:
        differences = [result.difference for result in results if result.name == name]
        largest = np.max(differences)  # nan if one of them is
        worst = Check(name, largest, allowed[name])
        if worst.is_right:
            verdict = "ok"
        else:
            verdict = "DIFFERS"
            failed += 1
        print(f"{verdict:<8}{name}: {worst.difference:.2g}, at most {worst.allowed:g}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", default="gpt2", help="a name or a directory (default: gpt2)"
    )
    parser.add_argument(
        "--download", action="store_true", help="download it if it is not on this machine"
    )
    args = parser.parse_args()
    try:
        if args.download:
            _, path = find_model(args.model, print)  # its notes are printed
        else:
            path = find_here(args.model)
        model = tiedgpt.load_model(path)
        print(
            f"tiedgpt {tiedgpt.__version__}, NumPy {np.__version__}, "
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        )
        print(path)
        print(repr(model))
        published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
        results = list(checks(model, published))
    except tiedgpt.TiedGPTError as error:
        sys.exit(f"error: {error}")
    failed = print_verdicts(results)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
