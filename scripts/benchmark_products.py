"""Compare tiedgpt's products of few rows with `rows @ weight`, for the matrices of GPT-2 124M.

    python scripts/benchmark_products.py
    OPENBLAS_CORETYPE=Haswell python scripts/benchmark_products.py    # with kernels for AVX2

A line of the table is a number of rows: the time of the products by the 48 matrices of the blocks
and by the output matrix, wte.T, and each time / that of `rows @ weight`. The two take turns, and
each figure is the median over the turns. Other work on the machine makes `rows @ weight` many times
slower, so run it on an idle machine. It takes about a minute.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 33, 48, 64, 96, 128)

# rows [R, in], weight [in, out] -> [R, out]
Product = Callable[[Any, Any], Any]


def seconds(product: Product, rows: dict[int, Any], weights: list[Any]) -> float:
    """The time of the products by all weights. `rows` has rows for each number of inputs."""
    start = perf_counter()
    for weight in weights:
        product(rows[len(weight)], weight)
    return perf_counter() - start


def compare(weights: list[Any], R: int, turns: int) -> tuple[float, float]:
    """The milliseconds of R rows' products by all weights; their time / that of `rows @ weight`."""
    # Imported here, because `tune` comes before NumPy.
    import numpy as np

    from tiedgpt.fast.products import product

    def plain(rows: Any, weight: Any) -> Any:
        return rows @ weight

    rows = {}  # the number of inputs of a weight -> rows for it
    for weight in weights:
        inputs = len(weight)
        rows[inputs] = np.ones((R, inputs), weight.dtype)
    times = []
    ratios = []
    for number in range(1 + turns):
        time = seconds(product, rows, weights)
        plain_time = seconds(plain, rows, weights)
        if number > 0:  # the first turn wakes the threads
            times.append(time)
            ratios.append(time / plain_time)
    return 1e3 * median(times), median(ratios)


def block_weights(model: Any) -> list[Any]:
    """The matrices of the blocks, in the order of a step."""
    parameters = model.parameters.items()
    return [array for name, array in parameters if name.startswith("h.") and array.ndim == 2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", metavar="N", type=int, default=15, help="default: 15")
    turns = parser.parse_args().turns
    sys.path.insert(0, str(ROOT))  # this checkout, even if another tiedgpt is installed
    from tiedgpt.fast import tune

    tune()  # before NumPy is imported, as the command line does
    from tiedgpt import GPT2, Config
    from tiedgpt.fast.blas import blas_threads, kernels

    model = GPT2.random(Config())
    blocks = block_weights(model)
    print(f"OpenBLAS: kernels for {kernels()}, {blas_threads()} threads")
    print(f"{'':>5} {'blocks':>17} {'output matrix':>17}")
    print(f"{'rows':>5} {'ms':>8} {'/ plain':>8} {'ms':>8} {'/ plain':>8}")
    for R in ROWS:
        block_time, block_ratio = compare(blocks, R, turns)
        output_time, output_ratio = compare([model.W_U], R, turns)
        print(f"{R:5} {block_time:8.1f} {block_ratio:8.2f} {output_time:8.1f} {output_ratio:8.2f}")


if __name__ == "__main__":
    main()
