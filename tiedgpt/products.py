"""Few rows times a weight matrix, without a copy of the matrix.

For one row, BLAS reads the weights in place. For more rows it first copies ("packs") the whole matrix into
blocks that suit its kernels. For hundreds of rows the copy pays; for 2 to 32 rows it takes longer than the
product. OpenBLAS does not pack small products. So the matrix is viewed as a stack of small matrices, a block
of outputs each, and one np.matmul multiplies all of them. Two threads take half of the stack each.
"""

import math

import numpy as np

from . import machine

MAX_ROWS = 32  # with more rows, packing pays
MIN_WEIGHT = 2**18  # elements: a smaller matrix is packed quickly
SMALL = 800_000  # multiplications: OpenBLAS packs products of a million, and some that are a little smaller
MAX_OUTPUTS = 64  # of a small matrix


def product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight."""
    R = len(rows)
    in_columns = weight.flags.f_contiguous  # in memory, the weights of one output are side by side
    if (
        1 < R <= MAX_ROWS
        and weight.size >= MIN_WEIGHT
        and (in_columns or weight.flags.c_contiguous)
        and machine.has_small_kernels()
    ):
        return stacked_product(rows, weight)
    # OpenBLAS multiplies few rows by a matrix in column order faster with both sides transposed: 1.5 times
    # for 32 rows.
    return (weight.T @ rows.T).T if R <= 64 and in_columns else rows @ weight


def stacked_product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, as a stack of products that OpenBLAS does not pack."""
    (R, size), outputs = rows.shape, weight.shape[1]
    n = min(MAX_OUTPUTS, max(8, SMALL // (R * size) // 8 * 8))  # outputs of a small product
    whole = outputs // n * n
    out = np.empty((outputs, R), weight.dtype)
    columns = rows.T  # [in, R]; as a view, 2 to 4 rows take less time than with a copy
    if weight.flags.f_contiguous:
        stack = weight[:, :whole].T.reshape(-1, n, size)  # a view, as the next one is
    else:
        stack = weight[:, :whole].reshape(size, -1, n).transpose(1, 2, 0)
    results = out[:whole].reshape(-1, n, R)
    half = math.ceil(len(stack) / 2)
    machine.in_two_threads(
        lambda: np.matmul(stack[:half], columns, out=results[:half]),
        lambda: np.matmul(stack[half:], columns, out=results[half:]),
    )
    if whole < outputs:
        np.matmul(weight.T[whole:], columns, out=out[whole:])
    return out.T
