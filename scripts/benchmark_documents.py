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
from tiedgpt.evaluation import score
from tiedgpt.fast.blas import single_thread

ROUNDS = 2
PADDED_BATCH = 32  # documents
SAMPLED = 20  # tokens for each prompt
TASKS = 300
RUN_DOCUMENTS = 4000  # in the file that the runs read
Texts = list[np.ndarray]
Side = Callable[[tiedgpt.GPT2, tiedgpt.Tokenizer, Texts], Any]


def documents(n: int, median: int, spread: float = 0.7, most: int = 1000) -> Texts:
    """Random documents of 2 to `most` tokens with ids below 1000.

    spread: the standard deviation of the logarithm of a length.
    """
    rng = np.random.default_rng(median)
    lengths = median * rng.lognormal(mean=0, sigma=spread, size=n)
    allowed_lengths = np.clip(lengths, 2, most).astype(int)
    return [rng.integers(1000, size=length) for length in allowed_lengths]


def compare(name: str, unit: str, work: float, *sides: Callable[[], Any]) -> list[float]:
    """Print the rate of each side, and the last side's rate / the first side's. Return the seconds.

    A rate is work per second. work: how many units each side does. A side's time is the shortest of
    the rounds. CPU time adds up all threads of this process.
    """
    load_of_last_minute, _, _ = os.getloadavg()
    wall = [float("inf")] * len(sides)
    cpu = [float("inf")] * len(sides)
    for _ in range(ROUNDS):
        for n, side in enumerate(sides):
            start = time.perf_counter()
            cpu_start = time.process_time()
            side()
            wall[n] = min(wall[n], time.perf_counter() - start)
            cpu[n] = min(cpu[n], time.process_time() - cpu_start)
    rates = " ".join(f"{work / seconds:10,.1f}" for seconds in wall)
    # The sides do the same work, so a ratio of rates is the inverse ratio of times.
    wall_ratio = wall[0] / wall[-1]
    cpu_ratio = cpu[0] / cpu[-1]
    print(
        f"{name:36} {rates} {unit}; ratio {wall_ratio:.2f}, of CPU time {cpu_ratio:.2f} "
        f"(load {load_of_last_minute:.1f})",
        flush=True,
    )
    return wall


def load(large: bool) -> tuple[tiedgpt.GPT2, tiedgpt.Tokenizer]:
    """The shipped model, or a random one of 124M; with the shipped tokenizer."""
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    if large:
        return tiedgpt.GPT2.random(tiedgpt.Config()), tokenizer
    return tiedgpt.load_model("shakespeare-tied"), tokenizer


def one_by_one(model: tiedgpt.GPT2, tokenizer: tiedgpt.Tokenizer, texts: Texts) -> list[Any]:
    return [score(model, tokenizer, ids) for ids in texts]


def all_at_once(model: tiedgpt.GPT2, tokenizer: tiedgpt.Tokenizer, texts: Texts) -> list[Any]:
    return list(tiedgpt.score_documents(model, tokenizer, texts))


def score_texts(large: bool, medians: tuple[int, ...], most: int, sides: list[Side]) -> None:
    """Compare the sides on one core, for documents of each median length up to `most` tokens."""
    single_thread()
    model, tokenizer = load(large)
    if large:
        count = 24
    else:
        count = 300
    for median in medians:
        texts = documents(count, median, most=most)
        tokens = sum(len(text) for text in texts)
        calls = [partial(side, model, tokenizer, texts) for side in sides]
        compare(f"median {median} tokens", "tokens/s", tokens, *calls)


def batches(large: bool) -> None:
    most = 127  # longer documents are not scored in batches
    score_texts(large, medians=(8, 16, 32, 64), most=most, sides=[one_by_one, all_at_once])


def rate(large: bool) -> None:
    score_texts(large, medians=(32, 300, 1000), most=1000, sides=[all_at_once])


def padded_losses(torch: Any, model: Any, texts: Texts) -> list[float]:
    """The mean loss of each document by transformers' GPT-2, in padded batches."""
    losses = []
    for start in range(0, len(texts), PADDED_BATCH):
        batch = texts[start : start + PADDED_BATCH]
        longest = max(len(text) for text in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)  # 1 for tokens, 0 for padding
        for row, text in enumerate(batch):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        with torch.no_grad():
            logits = model(ids, attention_mask=mask).logits[:, :-1]
            token_losses = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), ids[:, 1:], reduction="none"
            )
        is_target = mask[:, 1:]  # the first token is not predicted
        means = (token_losses * is_target).sum(1) / is_target.sum(1)
        losses += means.tolist()
    return losses


def transformers(_large: bool) -> None:
    import torch
    from transformers import GPT2LMHeadModel

    model, tokenizer = load(large=True)
    with tempfile.TemporaryDirectory() as folder:
        tiedgpt.save_model(model, None, folder)
        torch_model = GPT2LMHeadModel.from_pretrained(folder).eval()
    texts = documents(n=32, median=32)
    losses: dict[str, list[float]] = {}  # the functions below fill it

    def theirs() -> None:
        losses["transformers"] = padded_losses(torch, torch_model, texts)

    def ours() -> None:
        losses["tiedgpt"] = [result.nll for result in all_at_once(model, tokenizer, texts)]

    compare("transformers, tiedgpt", "documents/s", len(texts), theirs, ours)
    difference = np.abs(np.subtract(losses["transformers"], losses["tiedgpt"])).max()
    print(f"largest difference of a document's loss: {difference:.1e}")


def samples(_large: bool) -> None:
    model, tokenizer = load(large=True)
    prompts = documents(n=96, median=24, most=200)

    def one_prompt_at_a_time() -> None:
        for ids in prompts:
            list(tiedgpt.generate(model, ids, SAMPLED, seed=1))

    def all_prompts() -> None:
        list(tiedgpt.generate_documents(model, tokenizer, prompts, SAMPLED, seed=1))

    tokens = SAMPLED * len(prompts)
    compare("one prompt at a time, all", "tokens/s", tokens, one_prompt_at_a_time, all_prompts)


def run_documents(source: Path, workers: int) -> None:
    """Run `tiedgpt documents score` on a file."""
    out = source.with_name("out.jsonl")
    out.unlink(missing_ok=True)  # the command refuses to replace it
    command = [sys.executable, "-m", "tiedgpt", "documents", "score", str(source)]
    command += ["--out", str(out), "-q", "-m", "shakespeare-tied"]
    command += ["--shard-size", "25kB", "--workers", str(workers)]
    subprocess.run(command, check=True)


def write_random_documents(file: Path) -> None:
    rng = np.random.default_rng(0)
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    with open(file, "w", encoding="utf-8") as lines:
        for _ in range(RUN_DOCUMENTS):
            length = 2 + int(40 * rng.lognormal(mean=0, sigma=0.7))  # about 42 tokens
            ids = rng.integers(1000, size=length).tolist()
            lines.write(json.dumps({"text": tokenizer.decode(ids)}) + "\n")


def workers(_large: bool) -> None:
    from tiedgpt.scale.dask import connect

    with connect(workers=2, address=None) as client:
        pool = client.get_executor(pure=False)  # pure tasks would be computed once

        def run_empty_tasks() -> None:
            wait([pool.submit(int) for _ in range(TASKS)])  # int() does nothing

        compare("empty tasks, one client", "tasks/s", TASKS, run_empty_tasks)

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        write_random_documents(source)
        small = Path(folder, "small.jsonl")
        small.write_text('{"text": "abc"}\n', encoding="utf-8")

        one_worker = partial(run_documents, source, workers=1)
        two_workers = partial(run_documents, source, workers=2)
        one, two = compare("one worker, two", "documents/s", RUN_DOCUMENTS, one_worker, two_workers)
        run_small = partial(run_documents, small, workers=2)
        [start_and_end] = compare("start and end of a run", "runs/s", 1, run_small)
        ratio = (one - start_and_end) / (two - start_and_end)
        print(f"without start and end: ratio {ratio:.2f}")


ROWS = {
    "batches": batches,
    "transformers": transformers,
    "samples": samples,
    "rate": rate,
    "workers": workers,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("row", choices=ROWS)
    parser.add_argument(
        "--large", action="store_true", help="with 124M in place of the shipped model"
    )
    args = parser.parse_args()
    ROWS[args.row](args.large)


if __name__ == "__main__":
    main()
