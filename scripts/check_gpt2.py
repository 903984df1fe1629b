"""Compare the real GPT-2 124M with numbers that others published for it, and print a report.

The numbers are in tests/goldens/gpt2-124M.json, each with its source.

    python scripts/check_gpt2.py               # downloads gpt2, if it is not on this machine
    python scripts/check_gpt2.py DIRECTORY
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tiedgpt
from tiedgpt.checkpoints import find_model
from tiedgpt.evaluation import token_losses

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "goldens" / "gpt2-124M.json"


@dataclass(frozen=True)
class Fact:
    """Published numbers, and how they are computed from the model."""

    name: str
    compute: Callable[[tiedgpt.GPT2], Any]
    published: Any
    tolerance: float  # 0 for tokens

    def difference(self, model: tiedgpt.GPT2) -> float:
        """The largest difference of a number; inf for no numbers, and for another count of them."""
        ours = np.asarray(self.compute(model))
        published = np.asarray(self.published)
        if ours.shape != published.shape or ours.size == 0:
            return np.inf
        return float(np.abs(ours - published).max())


def facts(published: dict[str, Any]) -> Iterator[Fact]:
    """The facts of gpt2-124M.json. Those of one name have one tolerance, and share a line."""
    prompts = published["last_position_logits"]
    for example in prompts["examples"]:
        ids = example["ids"]
        top10 = [token for token, _text, _logit in example["top10"]]  # the most likely first
        numbers = [example[name] for name in ("logsumexp", "mean_logit", "max_logit", "min_logit")]
        numbers += example["first8_logits"]
        numbers += [logit for _token, _text, logit in example["top10"]]
        tolerance = prompts["suggested_tolerance"]
        yield Fact("logits after a prompt", partial(logits, ids, top10), numbers, tolerance)
        yield Fact("ten most likely tokens", partial(most_likely, ids), top10, 0)
    for example in published["greedy"]:
        ids = example["ids"]
        new = example["output_ids"][len(ids) :]  # output_ids begin with the prompt
        yield Fact("greedy tokens", partial(greedy, ids, len(new)), new, 0)
    hidden = published["final_hidden"]
    values = hidden["values"]
    compute = partial(final_hidden, hidden["ids"], len(values))
    yield Fact("final hidden state", compute, values, hidden["tolerance"])
    for example in published["mean_loss"]:
        source, _, _ = example["source"].partition(":")  # details follow the colon
        ids = example["ids"]
        B, T = example.get("batch", (1, len(ids) - 1))  # without "batch", the text is one row
        compute = partial(mean_loss, ids, B, T)
        yield Fact(f"loss, {source}", compute, example["loss"], example["tolerance"])


def logits(ids: list[int], top10: list[int], model: tiedgpt.GPT2) -> list[float]:
    """Four numbers over all logits after a prompt, the first 8 logits, and those of ten tokens."""
    last = model(ids)[-1].astype(np.float64)
    largest = last.max()
    logsumexp = largest + np.log(np.exp(last - largest).sum())
    return [logsumexp, last.mean(), largest, last.min(), *last[:8], *last[top10]]


def most_likely(ids: list[int], model: tiedgpt.GPT2) -> list[int]:
    """The ten most likely tokens after a prompt, the most likely first."""
    return np.argsort(-model(ids)[-1])[:10].tolist()


def greedy(ids: list[int], n: int, model: tiedgpt.GPT2) -> list[int]:
    """The n tokens that follow a prompt."""
    return list(tiedgpt.generate(model, ids, max_new_tokens=n, greedy=True))


def final_hidden(ids: list[int], n: int, model: tiedgpt.GPT2) -> Any:
    """The first n numbers of the final hidden state of the first token."""
    return model.final(ids)[0, :n]


def mean_loss(ids: list[int], B: int, T: int, model: tiedgpt.GPT2) -> float:
    """The mean loss of a text, cut into B rows of T tokens."""
    losses = []
    for start in range(0, B * T, T):
        row = ids[start : start + T + 1]  # its last token is predicted and not read
        # A row fits in the context, so it is one window, and the stride does not matter.
        losses.append(token_losses(model, row, stride=1))
    return float(np.mean(losses))


def report(model: tiedgpt.GPT2, published: dict[str, Any]) -> bool:
    """Print a line for each name, with the largest difference. Return whether all agree."""
    worst: dict[str, list[float]] = {}  # the differences of the facts of a name
    tolerances = {}
    for fact in facts(published):
        worst.setdefault(fact.name, []).append(fact.difference(model))
        tolerances[fact.name] = fact.tolerance
    agree = len(worst) > 0  # without a fact, nothing was looked at
    for name, differences in worst.items():
        largest = np.max(differences)  # nan if one of them is nan
        is_right = largest <= tolerances[name]  # False for nan
        agree = agree and bool(is_right)
        verdict = "ok" if is_right else "DIFFERS"
        print(f"{verdict:<8}{name}: {largest:.2g}, at most {tolerances[name]:g}")
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", default="gpt2", help="a name or a directory (default: gpt2)"
    )
    args = parser.parse_args()
    try:
        _, path = find_model(args.model, print)  # a note that it is downloaded is printed
        model = tiedgpt.load_model(path)
        print(
            f"tiedgpt {tiedgpt.__version__}, NumPy {np.__version__}, "
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        )
        print(path)
        print(repr(model))
        agree = report(model, json.loads(PUBLISHED.read_text(encoding="utf-8")))
    except tiedgpt.TiedGPTError as error:
        sys.exit(f"error: {error}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
