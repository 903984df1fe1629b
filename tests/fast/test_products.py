"""product(rows, weight), a matrix product that threads may share in blocks; threads, forks, Ctrl-C.

Blocks are used for few rows and a weight in column order, as the output matrix is, with OpenBLAS's
kernels for AVX-512.
"""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tiedgpt.fast import blas, products, threads
from tiedgpt.fast.products import few_rows, product


@pytest.fixture(autouse=True)
def blocks_on_any_machine(monkeypatch):
    """The machine has two threads and AVX-512, and small matrices are cut into blocks too."""
    monkeypatch.setattr(products, "MIN_WEIGHT", 0)
    monkeypatch.setattr(blas, "blas_threads", lambda: 2)
    monkeypatch.setattr(blas, "has_small_kernels", lambda: True)


@pytest.fixture
def matmuls(monkeypatch):
    """The shapes of the operands of each np.matmul of blocks, in a list."""
    shapes = []
    matmul = np.matmul

    def watched(first, second, out=None):
        if first.ndim == 3:
            shapes.append((first.shape, second.shape))
        return matmul(first, second, out=out)

    monkeypatch.setattr(np, "matmul", watched)
    return shapes


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(20))
def test_product_equals_numpys_and_repeats(seed, n_threads, monkeypatch):
    """The matrices have random shapes, orders and dtypes. Rows need not be side by side."""
    monkeypatch.setattr(blas, "blas_threads", lambda: n_threads)
    rng = np.random.default_rng(seed)
    R = rng.choice([1, 2, 3, 8, 32, 33])
    inputs = rng.integers(1, 100)
    outputs = rng.choice([1, 31, 32, 33, 64, 500])
    dtypes = rng.choice([np.float32, np.float64], 2)
    weight = rng.standard_normal((inputs, outputs)).astype(dtypes[0], order=rng.choice(["C", "F"]))
    rows = rng.standard_normal((2 * R, inputs)).astype(dtypes[1])[:: rng.choice([1, 2]), ::-1][:R]
    computed = product(rows, weight)
    expected = rows @ weight
    assert computed.dtype == expected.dtype
    tolerance = 1e-4 if computed.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(computed, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(product(rows, weight), computed)


def column_order(inputs, outputs):
    rng = np.random.default_rng(outputs)
    return rng.standard_normal((outputs, inputs), np.float32).T


@pytest.mark.parametrize("inputs", [768, 1600])  # of GPT-2 124M and XL
def test_each_weight_is_read_once_in_products_that_blas_computes_without_a_copy(matmuls, inputs):
    weight = column_order(inputs, 403)
    R = few_rows(weight)
    product(np.ones((R, inputs), np.float32), weight)
    assert len(matmuls) == 2, "one of each thread"
    assert sum(blocks for (blocks, _, _), _ in matmuls) == 403 // products.BLOCK
    for (_, outputs, _), columns in matmuls:
        assert columns == (inputs, R)
        assert outputs * inputs * R <= 10**6, "OpenBLAS copies larger matrices"


def test_where_blocks_gain_nothing_every_product_is_left_to_blas(monkeypatch):
    """few_rows is the most rows for which a product is made in blocks; 1 is for none."""
    weight = column_order(768, 400)
    assert few_rows(weight) == 32
    assert few_rows(np.ascontiguousarray(weight)) == 1, "in row order"
    assert few_rows(column_order(1536, 800)[::2, ::2]) == 1
    for module, name, value in [
        (products, "MIN_WEIGHT", weight.size + 1),
        (blas, "has_small_kernels", lambda: False),
        (blas, "blas_threads", lambda: None),  # another BLAS
        (blas, "blas_threads", lambda: 5),  # many cores
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert few_rows(weight) == 1, name
    monkeypatch.setattr(products, "product_in_blocks", lambda *_: pytest.fail("in blocks"))
    for R in (1, 33):
        product(np.ones((R, 768)), weight)


def test_one_of_several_threads_that_share_a_text_starts_no_others(monkeypatch):
    numbers = []
    thread_map = threads.thread_map
    monkeypatch.setattr(
        threads,
        "thread_map",
        lambda n_threads: (numbers.append(n_threads), thread_map(n_threads))[1],
    )
    monkeypatch.setattr(blas, "is_limited", lambda: True)
    product(np.ones((8, 768)), column_order(768, 400))
    assert numbers == [1]


def test_several_threads_may_call_product_at_once():
    weight = column_order(300, 900)
    rows = np.random.default_rng(0).standard_normal((8, 300))
    with ThreadPoolExecutor(6) as pool:
        computed = list(pool.map(lambda R: product(rows[:R], weight), [2, 3, 5, 8] * 10))
    for out in computed:
        np.testing.assert_allclose(out, rows[: len(out)] @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_either_thread_is_raised_and_the_next_call_works(monkeypatch, failing):
    weight = column_order(64, 640)
    rows = np.ones((8, 64), np.float32)
    matmul = np.matmul

    def failing_matmul(first, second, out=None):
        is_first_share = first.ndim == 3 and first.ctypes.data == weight.T.ctypes.data
        if first.ndim == 3 and is_first_share == (failing == 0):
            raise MemoryError
        return matmul(first, second, out=out)

    with monkeypatch.context() as patch:
        patch.setattr(np, "matmul", failing_matmul)
        with pytest.raises(MemoryError):
            product(rows, weight)
    np.testing.assert_allclose(product(rows, weight), rows @ weight, rtol=1e-4)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_callers_errstate_holds_in_all_threads(n_threads, monkeypatch):
    monkeypatch.setattr(blas, "blas_threads", lambda: n_threads)
    with np.errstate(over="raise"), threads.thread_map(n_threads) as map_shares:
        settings = list(map_shares(lambda share: np.geterr()["over"], range(n_threads)))
    assert settings == ["raise"] * n_threads


def test_a_training_has_no_more_than_four_threads(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 64)
    assert threads.training_threads(n_embd=64) == 4
    monkeypatch.setattr(threads, "cores", lambda: 3)
    assert threads.training_threads(n_embd=64) == 3


@pytest.mark.parametrize(
    "interrupted_call", [pytest.param(1, id="entering"), pytest.param(2, id="leaving")]
)
def test_after_an_interrupt_in_one_blas_thread_blas_has_all_its_threads(
    monkeypatch, interrupted_call
):
    """one_blas_thread sets the number of BLAS threads when it is entered, and when it is left.

    The interrupt comes in the first or the second of these calls, after the number is set.
    """
    thread_counts = [2]  # BLAS has two threads at first. Each number that is set is appended.

    def get_num_threads():
        return thread_counts[-1]

    def set_num_threads(count):
        thread_counts.append(count)
        calls = len(thread_counts) - 1  # the first number was not set by a call
        if calls == interrupted_call:
            raise KeyboardInterrupt

    functions = {"get_num_threads": get_num_threads, "set_num_threads": set_num_threads}
    # Every test uses the fixture blocks_on_any_machine, which has patched blas_threads. This test
    # needs the real function.
    monkeypatch.undo()
    monkeypatch.setattr(blas, "openblas", lambda name: functions[name])
    with pytest.raises(KeyboardInterrupt), blas.one_blas_thread():
        assert blas.is_limited()
    assert get_num_threads() == 2
    assert blas.blas_threads() == 2
    assert not blas.is_limited()


@pytest.fixture
def other_thread_limits_blas():
    """During the test, another thread limits BLAS to one thread."""
    blas_is_limited = threading.Event()
    test_has_ended = threading.Event()

    def limit():
        with blas.one_blas_thread():
            blas_is_limited.set()
            test_has_ended.wait(60)

    thread = threading.Thread(target=limit)
    thread.start()
    assert blas_is_limited.wait(60)
    yield
    test_has_ended.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("other_thread_limits_blas")
def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    """Another thread of the parent limits BLAS to one thread. In the child, BLAS is not limited."""
    # Every test uses the fixture blocks_on_any_machine, which has patched blas_threads. This test
    # needs the real function. It returns the number of threads that BLAS has without the limit.
    monkeypatch.undo()
    thread_count = blas.blas_threads()
    pid = os.fork()
    is_child = pid == 0
    if is_child:
        code = 1
        signal.alarm(60)  # ends this process if its threads never answer
        try:
            assert not blas.is_limited()
            assert blas.blas_threads() == thread_count
            with threads.thread_map(2) as map_shares:
                assert list(map_shares(abs, [-1, -2])) == [1, 2]
            code = 0
        finally:
            os._exit(code)  # this process is not to run the other tests
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
