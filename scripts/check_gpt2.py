"""Compare the real GPT-2 124M with numbers that others published for it, and print a report to
send.

The numbers are in tests/goldens/gpt2-124M.json, each with its source.

    python scripts/check_gpt2.py --download     # or without, if gpt2 is on this machine
    python scripts/check_gpt2.py DIRECTORY
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tiedgpt
from tiedgpt.checkpoints import hub
from tiedgpt.checkpoints.places import find_model
from tiedgpt.inference.evaluation import token_losses

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "goldens" / "gpt2-124M.json"


def checks(model: tiedgpt.GPT2, published: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(what is compared, the largest difference, the difference that is allowed) for each entry."""
    prompts = published["last_position_logits"]
    for example in prompts["examples"]:
        logits = model(example["ids"])[-1].astype(np.float64)
        top10, _, logits_of_top10 = zip(*example["top10"], strict=True)
        found = [
            np.log(np.exp(logits - logits.max()).sum()) + logits.max(),
            logits.mean(),
            logits.max(),
        ]
        found += [logits.min(), *logits[:8], *logits[list(top10)]]
        expected = [example[name] for name in ("logsumexp", "mean_logit", "max_logit", "min_logit")]
        expected += [*example["first8_logits"], *logits_of_top10]
        difference = np.abs(np.subtract(found, expected)).max()
        yield "logits after a prompt", difference, prompts["suggested_tolerance"]
        yield "ten most likely tokens that differ", np.sum(np.argsort(-logits)[:10] != top10), 0
    for example in published["greedy"]:
        new = example["output_ids"][len(example["ids"]) :]
        tokens = list(tiedgpt.generate(model, example["ids"], max_new_tokens=len(new), greedy=True))
        yield "greedy tokens that differ", sum(a != b for a, b in zip(tokens, new, strict=True)), 0
    example = published["final_hidden"]
    final = model.final(example["ids"])[0, : len(example["values"])]
    yield "final hidden state", np.abs(final - example["values"]).max(), example["tolerance"]
    for example in published["mean_loss"]:
        B, T = example.get("batch", (1, len(example["ids"]) - 1))
        rows = [example["ids"][at : at + T + 1] for at in range(0, B * T, T)]
        loss = np.mean(
            [token_losses(model, row, stride=1) for row in rows]
        )  # a row fits in the context
        yield (
            f"loss, {example['source'].split(':')[0]}",
            abs(loss - example["loss"]),
            example["tolerance"],
        )


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
        path = hub.find_or_download(args.model, print) if args.download else find_model(args.model)
        model = tiedgpt.load_model(path)
        print(
            f"tiedgpt {tiedgpt.__version__}, NumPy {np.__version__}, "
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        )
        print(path)
        print(repr(model))
        found = list(checks(model, json.loads(PUBLISHED.read_text(encoding="utf-8"))))
    except tiedgpt.TiedGPTError as error:
        sys.exit(f"error: {error}")
    failed = 0
    for what, allowed in {what: allowed for what, _, allowed in found}.items():
        largest = np.max([difference for name, difference, _ in found if name == what])
        verdict = "ok"
        if not largest <= allowed:  # nan is not an agreement
            verdict = "DIFFERS"
            failed += 1
        print(f"{verdict:<8}{what}: {largest:.2g}, at most {allowed:g}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
