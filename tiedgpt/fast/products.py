"""Few rows times a weight matrix, without a copy of the matrix.

For one row, BLAS reads the weights in place. For more rows it first copies ("packs") the whole matrix into
blocks that suit its kernels. For hundreds of rows the copy pays; for fewer rows it takes longer than it
saves. So np.matmul gets small matrices, which OpenBLAS with AVX-512 does not pack: products of fewer than a
million multiplications. Two threads multiply half of them each. While they wait they leave their core to
others, unlike BLAS's threads, so this is also the faster way on a busy machine.
"""

import math
from functools import partial

import numpy as np

from . import blas, threads

MIN_WEIGHT = 2**18  # elements: a smaller matrix is packed quickly
MOST_ROWS = 120
INPUTS, OUTPUTS = 128, 64  # of a small matrix in row order
ROWS_ALONE = 3  # so many rows are multiplied one by one
MIN_SIZE = 32  # of either; smaller matrices take longer than packing
COLUMN_ROWS = 32  # in column order: for more than 8 rows the kernel rounds 1.4 times as much as BLAS's
MOST_OUTPUTS, MULTIPLICATIONS = 32, 800_000  # of a small matrix in column order, which has all inputs


def most_rows() -> int:
    """The most rows for which small matrices take less time than packing, as measured on two cores.

    It is 1 if the kernels pack, and 1 if BLAS has more than MAX_THREADS threads, because two are used here.
    """
    n = blas.blas_threads()
    return MOST_ROWS if n is not None and n <= threads.MAX_THREADS and blas.has_small_kernels() else 1


def product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight."""
    R = len(rows)
    if 1 < R <= most_rows() and weight.size >= MIN_WEIGHT:
        # Column order: all inputs of an output are side by side, as in wte.T.
        if weight.flags.f_contiguous and R <= COLUMN_ROWS:
            return column_product(rows, weight)
        inputs, outputs = map(math.gcd, weight.shape, (INPUTS, OUTPUTS))
        if weight.flags.c_contiguous and min(inputs, outputs) >= MIN_SIZE:
            return row_product(rows, weight, inputs, outputs)
    # OpenBLAS multiplies few rows by a matrix in column order faster with both sides transposed: 1.5 times
    # for 32 rows.
    return (weight.T @ rows.T).T if R <= 64 and weight.flags.f_contiguous else rows @ weight


def row_product(  # [R, in], [in, out] -> [R, out]
    rows: np.ndarray, weight: np.ndarray, inputs: int, outputs: int
) -> np.ndarray:
    """rows @ weight, as a sum over blocks of `inputs` rows of the weight, each cut into `outputs` columns."""
    R, (size, end) = len(rows), weight.shape
    n = size // inputs
    blocks = weight.reshape(n, inputs, end)
    grid = weight.reshape(n, inputs, -1, outputs).swapaxes(1, 2)  # [n, end / outputs, inputs, outputs]
    columns = rows.reshape(R, n, 1, inputs).swapaxes(0, 1)  # [n, R, 1, inputs]
    sums = np.zeros((2, R, end), np.result_type(rows, weight))

    def add_products(out: np.ndarray, numbers: range) -> None:
        term = np.empty_like(out)
        matrices = term.reshape(R, -1, outputs).swapaxes(0, 1)  # [end / outputs, R, outputs]
        for number in numbers:
            if R <= ROWS_ALONE:  # BLAS multiplies one row in the order of memory
                np.matmul(columns[number], blocks[number], out=term[:, None])
            else:
                # The maximum is not needed. Finding it brings the block into the cache in the order of
                # memory, which is faster than the order of the product.
                blocks[number].max()
                np.matmul(columns[number, :, 0], grid[number], out=matrices)
            out += term

    middle = n // 2
    threads.in_two_threads(
        partial(add_products, sums[0], range(middle)), partial(add_products, sums[1], range(middle, n))
    )
    sums[0] += sums[1]
    return sums[0]


def column_product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, as a stack of products by a few columns of the weight."""
    (R, size), end = rows.shape, weight.shape[1]
    n = min(MOST_OUTPUTS, max(8, MULTIPLICATIONS // (R * size) // 8 * 8))
    whole = end // n * n
    # OpenBLAS has a kernel for each order. With more than 8 rows, the one for copied rows is faster.
    columns = rows.T if R <= 8 else np.ascontiguousarray(rows.T)  # [in, R]
    out = np.empty((end, R), np.result_type(rows, weight))
    stack, products = weight.T[:whole].reshape(-1, n, size), out[:whole].reshape(-1, n, R)

    def multiply(part: slice) -> None:
        np.matmul(stack[part], columns, out=products[part])

    middle = len(stack) // 2
    threads.in_two_threads(partial(multiply, slice(middle)), partial(multiply, slice(middle, None)))
    np.matmul(weight.T[whole:], columns, out=out[whole:])
    return out.T
