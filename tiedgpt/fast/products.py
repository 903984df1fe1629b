"""Few rows times a weight matrix, on two threads.

For one row, BLAS reads the weights in place. For more rows it first copies ("packs") the whole matrix into
blocks that suit its kernels. For hundreds of rows the copy pays; for fewer rows it takes longer than it
saves. So np.matmul gets small matrices, which OpenBLAS with AVX-512 does not pack: products of fewer than a
million multiplications. Other kernels pack: they get two and three rows one by one, for blocks that stay in
the cache, and four to seven at once. While the two threads wait they leave their core to others, unlike
BLAS's threads, so this is also the faster way on a busy machine.
"""

import math
from functools import partial

import numpy as np

from . import blas, threads

MIN_WEIGHT = 2**18  # elements: a smaller matrix is packed quickly
MOST_ROWS, OTHER_ROWS = 120, 7  # without packing, and for kernels that pack
INPUTS, OUTPUTS = 128, 64  # of a small matrix in row order
ROWS_ALONE = 3  # so many rows are multiplied one by one
MIN_SIZE = 32  # of either; smaller matrices take longer than packing
COLUMN_ROWS = 32  # in column order: for more than 8 rows the kernel rounds 1.4 times as much as BLAS's
MOST_OUTPUTS, MULTIPLICATIONS = 32, 800_000  # of a small matrix in column order, which has all inputs
OTHER_OUTPUTS = 128  # of a matrix in column order for other kernels


def most_rows() -> int:
    """The most rows for which these products take less time than BLAS's own, as measured on two cores.

    It is 1 if BLAS has more than MAX_THREADS threads, because two are used here. If the kernels pack and BLAS
    has three or four threads, only rows that are multiplied one by one take less time here.
    """
    n = blas.blas_threads()
    if n is None or n > threads.MAX_THREADS:
        return 1
    if blas.has_small_kernels():
        return MOST_ROWS
    return OTHER_ROWS if n <= 2 else ROWS_ALONE


def product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:  # [R, in], [in, out] -> [R, out]
    """rows @ weight."""
    (R, size), end = rows.shape, weight.shape[1]
    packed = R > ROWS_ALONE and not blas.has_small_kernels()
    if 1 < R <= most_rows() and weight.size >= MIN_WEIGHT and not (packed and blas.is_limited()):
        few = rows
        if packed and R % 4:  # one to three rows take the kernels as long as four
            few = np.concatenate([rows, np.zeros((-R % 4, size), rows.dtype)])
        # Column order: all inputs of an output are side by side, as in wte.T.
        if weight.flags.f_contiguous and R <= COLUMN_ROWS:
            return column_product(few, weight)[:R]
        inputs, outputs = map(math.gcd, weight.shape, (size // 2, end) if packed else (INPUTS, OUTPUTS))
        if weight.flags.c_contiguous and min(inputs, outputs) >= MIN_SIZE:
            return row_product(few, weight, inputs, outputs)[:R]
    # OpenBLAS takes 2/3 of the time for 32 rows by a matrix in column order with both sides transposed.
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
        term = out if n <= 2 else np.empty_like(out)  # with one block for each thread, the term is the sum
        matrices = term.reshape(R, -1, outputs).swapaxes(0, 1)  # [end / outputs, R, outputs]
        for number in numbers:
            if R <= ROWS_ALONE:  # BLAS multiplies one row in the order of memory
                np.matmul(columns[number], blocks[number], out=term[:, None])
            else:
                # The maximum is not needed. Finding it brings the block into the cache in the order of
                # memory, which is faster than the order of a product of several matrices.
                if len(matrices) > 1:
                    blocks[number].max()
                np.matmul(columns[number, :, 0], grid[number], out=matrices)
            if n > 2:
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
    small = blas.has_small_kernels()
    n = min(MOST_OUTPUTS, max(8, MULTIPLICATIONS // (R * size) // 8 * 8)) if small else OTHER_OUTPUTS
    whole = end // n * n
    # OpenBLAS has a kernel for each order. With more than 8 rows, the one for copied rows is faster.
    columns = rows.T if R <= 8 else np.ascontiguousarray(rows.T)  # [in, R]
    out = np.empty((end, R), np.result_type(rows, weight))
    np.matmul(weight.T[whole:], columns, out=out[whole:])
    stack, products = weight.T[:whole].reshape(-1, n, size), out[:whole].reshape(-1, n, R)
    if R <= ROWS_ALONE and not small:
        stack, columns, products = stack[:, None], rows[:, :, None], products.swapaxes(1, 2)[..., None]

    def multiply(part: slice) -> None:
        np.matmul(stack[part], columns, out=products[part])

    middle = len(stack) // 2
    threads.in_two_threads(partial(multiply, slice(middle)), partial(multiply, slice(middle, None)))
    return out.T
