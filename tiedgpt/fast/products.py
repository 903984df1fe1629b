"""Few rows times the output matrix, in less time: the logits of a step of several texts.

For more than one row, BLAS first copies the whole matrix into the order in which its kernels read
("packing"). For few rows, the copy takes longer than the product. OpenBLAS's kernels for AVX-512
multiply small matrices without a copy. So the matrix is cut into blocks that are small enough.
With the kernels for other processors, the blocks gain too little.
"""

import numpy as np

from . import blas, threads

Array = np.ndarray

MIN_WEIGHT = 2**18  # elements: BLAS copies a smaller matrix quickly
FEW_ROWS = 32  # the most rows for which blocks are faster
BLOCK = 32  # outputs
SMALL_PRODUCT = 10**6  # multiplications: OpenBLAS copies the matrices of larger products


def product(rows: Array, weight: Array) -> Array:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, in blocks if the rows are few and weight.T is in row order, as wte is."""
    if 1 < len(rows) <= few_rows(weight):
        return product_in_blocks(rows, weight)
    return rows @ weight


def few_rows(weight: Array) -> int:  # [in, out]
    """The most rows for which blocks take less time than BLAS's own product of the whole matrix.

    It is 1 where BLAS's own product is always used.
    """
    is_column_order = weight.flags.f_contiguous and not weight.flags.c_contiguous
    if not is_column_order or weight.size < MIN_WEIGHT or not blas.has_small_kernels():
        return 1
    blas_threads = blas.blas_threads()
    if blas_threads is None or blas_threads > threads.MAX_THREADS:
        return 1  # BLAS uses more cores than the threads that would share the blocks
    multiplications_per_row = BLOCK * len(weight)
    return min(FEW_ROWS, SMALL_PRODUCT // multiplications_per_row)


def product_in_blocks(rows: Array, weight: Array) -> Array:  # [R, in], [in, out] -> [R, out]
    """rows @ weight, for BLOCK outputs at a time. Each thread computes a share of the outputs."""
    transposed = weight.T  # [out, in], in row order
    outputs, inputs = transposed.shape
    columns = np.ascontiguousarray(rows.T)  # [in, R], the order in which the kernels are fastest
    out = np.empty((outputs, len(rows)), np.result_type(rows, weight))
    # While threads share a text or a batch, BLAS is limited to one thread, and this is one of them.
    n_threads = 1 if blas.is_limited() else threads.reading_threads()
    n_blocks = outputs // BLOCK

    def multiply(share: int) -> None:
        first = share * n_blocks // n_threads
        end = (share + 1) * n_blocks // n_threads
        part = slice(first * BLOCK, end * BLOCK)
        blocks = transposed[part].reshape(end - first, BLOCK, inputs)
        np.matmul(blocks, columns, out=out[part].reshape(end - first, BLOCK, len(rows)))

    with threads.thread_map(n_threads) as map_shares:
        list(map_shares(multiply, range(n_threads)))
    rest = slice(n_blocks * BLOCK, outputs)  # fewer than BLOCK outputs remain
    np.matmul(transposed[rest], columns, out=out[rest])
    return out.T
