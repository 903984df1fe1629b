"""Measure many documents at once: batches, padded batches of transformers, samples, processes.

    python scripts/benchmark_documents.py batches [--large]
    python scripts/benchmark_documents.py transformers
    python scripts/benchmark_documents.py samples
    python scripts/benchmark_documents.py rate [--large]
    python scripts/benchmark_documents.py workers

batches       score_documents / score one by one
transformers  124M, beside padded batches of 32
samples       124M, 20 tokens for each of many prompts
rate          tokens per second of a core, for costs
workers       two workers / one; the cost of a Dask task

Random weights stand for 124M: speed does not depend on their values. Lengths are log-normal around
a median. The two sides of a row take turns; a figure is the best of the rounds. The 1-minute load
average before each row is shown, because other work on the machine changes the figures.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tiedgpt
from tiedgpt.fast.blas import single_thread
from tiedgpt.inference.evaluation import score

ROUNDS = 2


def documents(n: int, median: int, spread: float = 0.7, most: int = 1000) -> list[np.ndarray]:
    """Random documents of 2 to `most` tokens with ids below 1000."""
    rng = np.random.default_rng(median)
    lengths = np.clip(median * rng.lognormal(0, spread, n), 2, most).astype(int)
    return [rng.integers(1000, size=length) for length in lengths]


def compare(name: str, unit: str, work: float, *sides: Callable[[], Any]) -> list[float]:
    """Print work per second of each side, and the last one's over the first one's."""
    load = os.getloadavg()[0]
    wall, cpu = [[float("inf")] * len(sides) for _ in range(2)]
    for _ in range(ROUNDS):
        for n, side in enumerate(sides):
            start, start_cpu = time.perf_counter(), time.process_time()
            side()
            wall[n] = min(wall[n], time.perf_counter() - start)
            cpu[n] = min(cpu[n], time.process_time() - start_cpu)
    rates = " ".join(f"{work / seconds:10,.1f}" for seconds in wall)
    wall_ratio = wall[0] / wall[-1]
    cpu_ratio = cpu[0] / cpu[-1]
    print(
        f"{name:36} {rates} {unit}; ratio {wall_ratio:.2f}, of CPU time {cpu_ratio:.2f} "
        f"(load {load:.1f})",
        flush=True,
    )
    return wall


def load(large: bool) -> tuple[tiedgpt.GPT2, tiedgpt.Tokenizer]:
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    model = (
        tiedgpt.GPT2.random(tiedgpt.Config()) if large else tiedgpt.load_model("shakespeare-tied")
    )
    return model, tokenizer


def one_by_one(
    model: tiedgpt.GPT2, tokenizer: tiedgpt.Tokenizer, texts: list[np.ndarray]
) -> list[Any]:
    return [score(model, tokenizer, ids) for ids in texts]


def all_at_once(
    model: tiedgpt.GPT2, tokenizer: tiedgpt.Tokenizer, texts: list[np.ndarray]
) -> list[Any]:
    return list(tiedgpt.score_documents(model, tokenizer, texts))


def score_texts(
    large: bool, medians: tuple[int, ...], most: int, *sides: Callable[..., Any]
) -> None:
    single_thread()
    model, tokenizer = load(large)
    for median in medians:
        texts = documents(24 if large else 300, median, most=most)
        tokens = sum(map(len, texts))
        timed = (partial(side, model, tokenizer, texts) for side in sides)
        compare(f"median {median} tokens", "tokens/s", tokens, *timed)


def batches(large: bool) -> None:
    score_texts(large, (8, 16, 32, 64), 127, one_by_one, all_at_once)


def rate(large: bool) -> None:
    score_texts(large, (32, 300, 1000), 1000, all_at_once)


def transformers(_large: bool) -> None:
    import torch
    from transformers import GPT2LMHeadModel

    model, tokenizer = load(True)
    with tempfile.TemporaryDirectory() as folder:
        tiedgpt.save_model(model, None, folder)
        other = GPT2LMHeadModel.from_pretrained(folder).eval()
    texts = documents(32, 32)
    found: list[list[float]] = [[], []]

    def padded() -> None:
        found[0] = []
        for start in range(0, len(texts), 32):
            part = texts[start : start + 32]
            ids = torch.full((len(part), max(map(len, part))), 0)
            mask = torch.zeros_like(ids)
            for row, kept, text in zip(ids, mask, part, strict=True):
                row[: len(text)], kept[: len(text)] = torch.tensor(text), 1
            with torch.no_grad():
                logits = other(ids, attention_mask=mask).logits[:, :-1]
                losses = torch.nn.functional.cross_entropy(
                    logits.transpose(1, 2), ids[:, 1:], reduction="none"
                )
            means = (losses * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)
            found[0] += means.tolist()

    def ours() -> None:
        found[1] = [result.nll for result in all_at_once(model, tokenizer, texts)]

    compare("transformers, tiedgpt", "documents/s", len(texts), padded, ours)
    difference = np.abs(np.subtract(found[0], found[1])).max()
    print(f"largest difference of a document's loss: {difference:.1e}")


def samples(_large: bool) -> None:
    model, tokenizer = load(True)
    prompts = documents(96, 24, most=200)
    compare(
        "one prompt at a time, all",
        "tokens/s",
        20 * len(prompts),
        lambda: [list(tiedgpt.generate(model, ids, 20, seed=1)) for ids in prompts],
        lambda: list(tiedgpt.generate_documents(model, tokenizer, prompts, 20, seed=1)),
    )


def workers(_large: bool) -> None:
    from tiedgpt.scale.dask import connect

    with connect(2, None) as client:
        pool = client.get_executor(pure=False)
        compare(
            "empty tasks, one client",
            "tasks/s",
            300,
            lambda: wait([pool.submit(int) for _ in range(300)]),
        )
    rng = np.random.default_rng(0)
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    with tempfile.TemporaryDirectory() as folder:
        source, n = Path(folder, "in.jsonl"), 4000
        with open(source, "w", encoding="utf-8") as file:
            for _ in range(n):
                text = tokenizer.decode(
                    rng.integers(1000, size=int(40 * rng.lognormal(0, 0.7)) + 2).tolist()
                )
                file.write(json.dumps({"text": text}) + "\n")

        small = Path(folder, "small.jsonl")
        small.write_text('{"text": "abc"}\n', encoding="utf-8")

        def run(source: Path, workers: int) -> None:
            out = Path(folder, "out.jsonl")
            out.unlink(missing_ok=True)
            command = [
                sys.executable,
                "-m",
                "tiedgpt",
                "documents",
                "score",
                str(source),
                "--out",
                str(out),
            ]
            flags = [
                "-q",
                "-m",
                "shakespeare-tied",
                "--shard-size",
                "25kB",
                "--workers",
                str(workers),
            ]
            subprocess.run([*command, *flags], check=True)

        one, two = compare(
            "one worker, two", "documents/s", n, partial(run, source, 1), partial(run, source, 2)
        )
        [start] = compare("start and end of a run", "runs/s", 1, lambda: run(small, 2))
        print(f"without start and end: ratio {(one - start) / (two - start):.2f}")


def main() -> None:
    rows = {f.__name__: f for f in (batches, transformers, samples, rate, workers)}
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("row", choices=rows)
    parser.add_argument(
        "--large", action="store_true", help="with 124M in place of the shipped model"
    )
    args = parser.parse_args()
    rows[args.row](args.large)


if __name__ == "__main__":
    main()
