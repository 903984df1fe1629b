"""Few rows times a weight matrix, without a copy of the matrix.

For one row, BLAS reads the weights in place. For more rows it first copies ("packs") the whole matrix into
blocks that suit its kernels. For hundreds of rows the copy pays; for a few rows it takes longer than the
product. So the matrix is viewed as a grid of small matrices, and one np.matmul multiplies all of them.
OpenBLAS with AVX-512 does not pack small products. Two threads take half of the grid's columns each.
"""

import math

import numpy as np

from . import blas, threads

MIN_WEIGHT = 2**18  # elements: a smaller matrix is packed quickly
INPUTS, OUTPUTS = 128, 128  # of a small matrix in row order: for 32 rows, half a million multiplications
COLUMN_OUTPUTS = 16  # of a small matrix in column order, which has all inputs
MIN_INPUTS = 32  # smaller blocks take longer than packing


def most_rows() -> int:
    """The most rows for which a grid takes less time than packing, as measured on two cores.

    It is 1 if the kernels pack, and 1 if BLAS has more than MAX_THREADS threads, because a grid uses two.
    """
    n = blas.blas_threads()
    return 32 if n is not None and n <= threads.MAX_THREADS and blas.has_small_kernels() else 1


def product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight."""
    R, size = rows.shape
    in_columns = weight.flags.f_contiguous  # as wte.T is
    if R > 1 and weight.size >= MIN_WEIGHT and most_rows() >= R:
        inputs = size if in_columns else math.gcd(size, INPUTS)
        if inputs >= MIN_INPUTS:
            return grid_product(rows, weight, inputs, COLUMN_OUTPUTS if in_columns else OUTPUTS)
    # OpenBLAS multiplies few rows by a matrix in column order faster with both sides transposed: 1.5 times
    # for 32 rows.
    return (weight.T @ rows.T).T if R <= 64 and in_columns else rows @ weight


def grid_product(  # [R, in], [in, out] -> [R, out]
    rows: np.ndarray, weight: np.ndarray, inputs: int, outputs: int
) -> np.ndarray:
    """rows @ weight, as a sum of products by matrices [inputs, outputs] that OpenBLAS does not pack.

    `inputs` divides the rows' length.
    """
    R, (size, end) = len(rows), weight.shape
    whole = end // outputs * outputs
    grid = weight[:, :whole].reshape(size // inputs, inputs, -1, outputs).swapaxes(1, 2)  # a view
    columns = rows.reshape(R, -1, 1, inputs).transpose(1, 2, 0, 3)  # [in / inputs, 1, R, inputs]
    terms = np.empty((len(grid), R, end), np.result_type(rows, weight))
    blocks = terms[:, :, :whole].reshape(len(grid), R, -1, outputs).swapaxes(1, 2)
    out = terms[0] if len(grid) == 1 else np.empty_like(terms[0])
    middle = math.ceil(whole / outputs / 2)

    def half(part: slice, part_outputs: slice) -> None:
        np.matmul(columns, grid[:, part], out=blocks[:, part])
        if len(grid) > 1:
            np.add.reduce(terms[:, :, part_outputs], axis=0, out=out[:, part_outputs])

    threads.in_two_threads(
        lambda: half(slice(middle), slice(middle * outputs)),
        lambda: half(slice(middle, None), slice(middle * outputs, whole)),
    )
    if whole < end:
        np.matmul(rows, weight[:, whole:], out=out[:, whole:])
    return out
