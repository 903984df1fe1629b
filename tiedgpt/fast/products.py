"""Few rows times a weight matrix, without a copy of the matrix.

For one row, BLAS reads the weights in place. For more rows it first copies ("packs") the whole matrix into
blocks that suit its kernels. For hundreds of rows the copy pays; for a few rows it takes longer than the
product. So the matrix is viewed as a stack of small matrices, a block of outputs each, and one np.matmul
multiplies all of them. OpenBLAS with AVX-512 does not pack small products. With other kernels each block is
multiplied by one row after the other: it comes from memory for the first row and from the processor's cache
for the next rows. Two threads take half of the stack each.
"""

import math

import numpy as np

from . import blas, threads

MIN_WEIGHT = 2**18  # elements: a smaller matrix is packed quickly
SMALL = 800_000  # multiplications: OpenBLAS packs products of a million, and some that are a little smaller
MAX_OUTPUTS = 64  # of a small product
BLOCK = 2**16  # elements of a matrix that is multiplied row by row: 256 kB, which a core's cache holds


def most_rows() -> int:
    """The most rows for which a stack takes less time than packing, as measured on two cores.

    1 if BLAS has more than MAX_THREADS threads: two would leave most cores idle.
    """
    n = blas.blas_threads()
    if n is None or n > threads.MAX_THREADS:
        return 1
    return 32 if blas.has_small_kernels() else 4


def product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight."""
    R = len(rows)
    in_columns = weight.flags.f_contiguous  # in memory, the weights of one output are side by side
    if in_columns and R > 1 and weight.size >= MIN_WEIGHT and most_rows() >= R:
        return stacked_product(rows, weight)
    # OpenBLAS multiplies few rows by a matrix in column order faster with both sides transposed: 1.5 times
    # for 32 rows.
    return (weight.T @ rows.T).T if R <= 64 and in_columns else rows @ weight


def stacked_product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, as a stack of products that OpenBLAS does not pack. `weight` is in column order."""
    (R, size), outputs = rows.shape, weight.shape[1]
    small = blas.has_small_kernels()
    n = min(MAX_OUTPUTS, max(8, SMALL // (R * size) // 8 * 8)) if small else max(1, BLOCK // size)
    whole = outputs // n * n
    dtype = np.result_type(rows, weight)
    out = np.empty((outputs, R), dtype)
    if small:
        stack = weight.T[:whole].reshape(-1, n, size)  # a view
        columns = rows.T  # [in, R]; as a view, 2 to 4 rows take less time than with a copy
        results = out[:whole].reshape(-1, n, R)
    else:  # one product for each block and row
        stack = weight.T[:whole].reshape(-1, 1, n, size)
        columns = rows[:, :, None]  # [R, in, 1]
        results = np.empty((len(stack), R, n, 1), dtype)  # np.matmul follows the order of its output
    half = math.ceil(len(stack) / 2)
    threads.in_two_threads(
        lambda: np.matmul(stack[:half], columns, out=results[:half]),
        lambda: np.matmul(stack[half:], columns, out=results[half:]),
    )
    if not small:
        out[:whole].reshape(-1, n, R)[...] = results[..., 0].swapaxes(1, 2)
    if whole < outputs:
        np.matmul(weight.T[whole:], rows.T, out=out[whole:])
    return out.T
