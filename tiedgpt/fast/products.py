"""Few rows times a weight matrix, on two threads.

For one row, BLAS reads the weights in place. For more rows it first copies ("packs") the whole
matrix into blocks that suit its kernels. For hundreds of rows the copy pays; for fewer rows it
takes longer than it saves. So np.matmul gets small matrices, which OpenBLAS with AVX-512 does not
pack: products of fewer than a million multiplications. Other kernels pack: they get the rows one by
one, for blocks that stay in the cache.
"""

import math
from functools import partial

import numpy as np

from . import blas, threads

MIN_WEIGHT = 2**18  # elements: a smaller matrix is packed quickly
MOST_ROWS, OTHER_ROWS = 47, 10  # without packing, and for kernels that pack
# Of a small matrix in row order: inputs for up to FEW_ROWS rows, inputs for more rows, outputs.
FEW_ROWS, FEW_INPUTS, INPUTS, OUTPUTS = 8, 384, 128, 128
OTHER_INPUTS = 64  # of a matrix in row order for other kernels, which has all outputs
MIN_SIZE = 32  # of either; smaller matrices take longer than packing
COLUMN_ROWS = (
    32  # in column order: for more than 8 rows the kernel rounds 1.4 times as much as BLAS's
)
MOST_OUTPUTS, MULTIPLICATIONS = (
    32,
    800_000,
)  # of a small matrix in column order, which has all inputs
OTHER_OUTPUTS = 128  # of a matrix in column order for other kernels


def most_rows() -> int:
    """The most rows for which these products take less time than BLAS's own, as measured on two
    cores."""
    n = blas.blas_threads()
    if n is None or n > threads.MAX_THREADS:  # these products use two threads only
        return 1
    return MOST_ROWS if blas.has_small_kernels() else OTHER_ROWS


def product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight."""
    (R, size), end = rows.shape, weight.shape[1]
    if 1 < R <= most_rows() and weight.size >= MIN_WEIGHT:
        # Column order: all inputs of an output are side by side, as in wte.T.
        if weight.flags.f_contiguous and R <= COLUMN_ROWS:
            return column_product(rows, weight)
        small = blas.has_small_kernels()
        inputs = math.gcd(
            size, (FEW_INPUTS if R <= FEW_ROWS else INPUTS) if small else OTHER_INPUTS
        )
        outputs = math.gcd(end, OUTPUTS) if small else end
        if weight.flags.c_contiguous and min(inputs, outputs) >= MIN_SIZE:
            return row_product(rows, weight, inputs, outputs)
    # OpenBLAS takes 2/3 of the time for 32 rows by a matrix in column order with both sides
    # transposed.
    return (weight.T @ rows.T).T if R <= 64 and weight.flags.f_contiguous else rows @ weight


def row_product(  # [R, in], [in, out] -> [R, out]
    rows: np.ndarray, weight: np.ndarray, inputs: int, outputs: int
) -> np.ndarray:
    """rows @ weight, as a sum over blocks of `inputs` rows of the weight, each cut into `outputs`
    columns."""
    R, (size, end) = len(rows), weight.shape
    n, small = size // inputs, blas.has_small_kernels()
    left = rows.reshape(R, n, 1, inputs).swapaxes(0, 1)  # [n, R, 1, inputs]
    right = weight.reshape(n, inputs, -1, outputs).swapaxes(
        1, 2
    )  # [n, end / outputs, inputs, outputs]
    shape = (R, 1, end)
    if small:  # these kernels are faster with both sides transposed
        left, right = right.swapaxes(2, 3), np.ascontiguousarray(left.transpose(0, 2, 3, 1))
        shape = (end // outputs, outputs, R)
    sums = np.zeros((2, *shape), np.result_type(rows, weight))

    def add_products(out: np.ndarray, numbers: range) -> None:
        term = out
        for number in numbers:
            np.matmul(left[number], right[number], out=term)
            if term is not out:
                out += term
            elif len(numbers) > 1:
                term = np.empty_like(out)

    halves = (
        partial(add_products, sums[0], range(n // 2)),
        partial(add_products, sums[1], range(n // 2, n)),
    )
    threads.in_two_threads(*halves)
    sums[0] += sums[1]
    return sums[0].reshape(end, R).T if small else sums[0].reshape(R, end)


def column_product(
    rows: np.ndarray, weight: np.ndarray
) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, as a stack of products by a few columns of the weight."""
    (R, size), end = rows.shape, weight.shape[1]
    small = blas.has_small_kernels()
    n = (
        min(MOST_OUTPUTS, max(8, MULTIPLICATIONS // (R * size) // 8 * 8))
        if small
        else OTHER_OUTPUTS
    )
    whole = end // n * n
    # OpenBLAS has a kernel for each order. With more than 8 rows, the one for copied rows is
    # faster.
    columns = rows.T if R <= 8 else np.ascontiguousarray(rows.T)  # [in, R]
    out = np.empty((end, R), np.result_type(rows, weight))
    np.matmul(weight.T[whole:], columns, out=out[whole:])
    stack, products = weight.T[:whole].reshape(-1, n, size), out[:whole].reshape(-1, n, R)
    if not small:
        stack, columns, products = (
            stack[:, None],
            rows[:, :, None],
            products.swapaxes(1, 2)[..., None],
        )

    def multiply(part: slice) -> None:
        np.matmul(stack[part], columns, out=products[part])

    middle = len(stack) // 2
    threads.in_two_threads(partial(multiply, slice(middle)), partial(multiply, slice(middle, None)))
    return out.T
