"""Few rows times a large weight matrix: rows @ weight, in less time.

What BLAS does: for one row, it reads the weights once, as fast as the memory delivers them. For
more rows, it first copies the whole matrix into the order in which its kernels read ("packing").
For hundreds of rows the copy is a small part of the work. For two rows it takes longer than the
product.

What this does instead: it cuts the weights into blocks that fit into a core's cache, and multiplies
one row after the other by a block, without a copy. The first row brings the block from memory; the
other rows find it in the cache. Two threads share the blocks. OpenBLAS's kernels for AVX-512
multiply small matrices without a copy. With these kernels, all rows are multiplied by a block of
the output matrix at once.

What it gains: this command prints the time of `product` / the time of `rows @ weight`, for 1 to 128
rows and the matrices of GPT-2 124M.

    python scripts/benchmark_products.py
"""

from functools import partial

import numpy as np

from . import blas, threads

Array = np.ndarray

MIN_WEIGHT = 2**18  # elements: BLAS copies a smaller matrix quickly
# The most rows that are few:
FEW_ROWS = 4  # for weights in row order, as in GPT-2's blocks
FEW_COLUMN_ORDER = 6  # for weights in column order, as in the output matrix
FEW_AVX512 = 32  # for weights in column order, with OpenBLAS's kernels for AVX-512
BLOCK_INPUTS = 64  # in a block of weights in row order, which has all outputs
BLOCK_OUTPUTS = 32  # in a block of weights in column order, which has all inputs
SMALL_PRODUCT = 10**6  # multiplications: kernels for AVX-512 copy the matrices of larger products


def product(rows: Array, weight: Array) -> Array:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, in blocks if the rows are few."""
    if 1 < len(rows) <= few_rows(weight):
        if weight.flags.c_contiguous:
            return row_order_product(rows, weight)
        return column_order_product(rows, weight)
    return rows @ weight


def few_rows(weight: Array) -> int:  # [in, out]
    """The most rows for which blocks of this weight take less time than BLAS's own product.

    It is 1 where BLAS's own product is always used: for a small matrix, with another BLAS than
    OpenBLAS, and on many cores, because the blocks are computed on two cores only.
    """
    blas_threads = blas.blas_threads()
    if blas_threads is None or blas_threads > threads.MAX_THREADS or weight.size < MIN_WEIGHT:
        return 1
    if weight.flags.c_contiguous:  # row order
        return FEW_ROWS
    if not weight.flags.f_contiguous:  # not column order either, such as weight[::2]
        return 1
    if blas.has_small_kernels():
        # All rows are multiplied by a block at once, which must be a small product.
        multiplications_per_row = BLOCK_OUTPUTS * len(weight)
        return min(FEW_AVX512, SMALL_PRODUCT // multiplications_per_row)
    return FEW_COLUMN_ORDER


def row_order_product(rows: Array, weight: Array) -> Array:  # [R, in], [in, out] -> [R, out]
    """rows @ weight. Each thread adds up the products by half of the inputs."""
    middle = len(weight) // 2
    first, second = threads.in_two_threads(
        partial(sum_of_blocks, rows[:, :middle], weight[:middle]),
        partial(sum_of_blocks, rows[:, middle:], weight[middle:]),
    )
    return first + second


def sum_of_blocks(rows: Array, weight: Array) -> Array:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, as the sum of the products by BLOCK_INPUTS inputs each."""
    total = np.zeros((len(rows), weight.shape[1]), np.result_type(rows, weight))
    for start in range(0, len(weight), BLOCK_INPUTS):
        block = slice(start, start + BLOCK_INPUTS)
        # NumPy multiplies a stack of rows, [R, 1, inputs], one row after the other.
        products = rows[:, np.newaxis, block] @ weight[block]  # [R, 1, out]
        total += products[:, 0]
    return total


def column_order_product(rows: Array, weight: Array) -> Array:  # [R, in], [in, out] -> [R, out]
    """rows @ weight. Each thread computes half of the outputs."""
    transposed = weight.T  # [out, in], in row order
    out = np.empty((len(transposed), len(rows)), np.result_type(rows, weight))
    middle = len(transposed) // 2
    threads.in_two_threads(
        partial(multiply_blocks, transposed[:middle], rows, out[:middle]),
        partial(multiply_blocks, transposed[middle:], rows, out[middle:]),
    )
    return out.T


def multiply_blocks(transposed: Array, rows: Array, out: Array) -> None:
    """out = transposed @ rows.T, for BLOCK_OUTPUTS outputs at a time.

    transposed [out, in], rows [R, in], out [out, R]
    """
    R, inputs = rows.shape
    columns = np.ascontiguousarray(rows.T)  # [in, R], the order in which the kernels are fastest
    n_blocks = len(transposed) // BLOCK_OUTPUTS
    blocks_end = n_blocks * BLOCK_OUTPUTS
    blocks = transposed[:blocks_end].reshape(n_blocks, BLOCK_OUTPUTS, inputs)
    products = out[:blocks_end].reshape(n_blocks, BLOCK_OUTPUTS, R)  # a view of `out`
    if blas.has_small_kernels():
        np.matmul(blocks, columns, out=products)
    else:
        # This multiplies each block, [BLOCK_OUTPUTS, inputs], by one row after the other, as a
        # column [inputs, 1]. matmul runs over all pairs of a block and a row.
        each_block = blocks[:, np.newaxis]  # [n_blocks, 1, BLOCK_OUTPUTS, inputs]
        each_row = rows[:, :, np.newaxis]  # [R, inputs, 1]
        each_product = products.swapaxes(1, 2)[..., np.newaxis]  # [n_blocks, R, BLOCK_OUTPUTS, 1]
        np.matmul(each_block, each_row, out=each_product)
    # Fewer than BLOCK_OUTPUTS outputs remain after the blocks.
    np.matmul(transposed[blocks_end:], columns, out=out[blocks_end:])
