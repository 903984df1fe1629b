"""product(x, weight), a matrix product of few rows, in two threads and after a fork.

product(x, weight) is x [R, in] @ weight [in, out]. If x has more than one row, and at most
few_rows(weight), two threads make the product in blocks of the weight. All other products are left
to BLAS. A weight is in row order ("C") or in column order ("F"). Small kernels are OpenBLAS's
kernels for AVX-512, which multiply small matrices without a copy.
"""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tiedgpt.fast import blas, products, threads
from tiedgpt.fast.products import few_rows, product

KERNELS = pytest.mark.parametrize(
    "small_kernels", [pytest.param(True, id="AVX-512"), pytest.param(False, id="AVX2")]
)
ORDERS = pytest.mark.parametrize(
    "order", [pytest.param("C", id="row-order"), pytest.param("F", id="column-order")]
)


@pytest.fixture(autouse=True)
def blocks_on_any_machine(monkeypatch):
    """The machine has two threads and AVX-512, and small matrices are cut into blocks too."""
    monkeypatch.setattr(products, "MIN_WEIGHT", 0)
    monkeypatch.setattr(blas, "blas_threads", lambda: 2)
    monkeypatch.setattr(blas, "has_small_kernels", lambda: True)


@pytest.fixture
def blocks_for_any_number_of_rows(monkeypatch):
    """All products of more than one row are made in blocks."""
    monkeypatch.setattr(products, "few_rows", lambda weight: 10**6)


@pytest.fixture
def stacked_products(monkeypatch):
    """A list to which each np.matmul of a stack of blocks adds its operands: (blocks, factor).

    The outputs that do not fill a block are a product of two matrices, which is not recorded.
    """
    recorded = []
    matmul = np.matmul

    def watched(first, second, out=None):
        is_stack = first.ndim > 2
        if is_stack:
            recorded.append((first, second))
        return matmul(first, second, out=out)

    monkeypatch.setattr(np, "matmul", watched)
    return recorded


def random_operands(*, rows, inputs, outputs, order="F"):
    """Random rows x [rows, inputs] and a random weight [inputs, outputs]."""
    rng = np.random.default_rng(rows + outputs)
    weight = np.asarray(rng.standard_normal((inputs, outputs)), order=order)
    x = rng.standard_normal((rows, inputs))
    return x, weight


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        pytest.param(5, 3, id="small"),
        pytest.param(96, 1, id="one-output"),
        pytest.param(128, 64, id="whole-blocks"),
        pytest.param(768, 2304, id="c_attn-of-GPT-2"),
        pytest.param(3072, 77, id="part-of-a-block-of-outputs"),
        pytest.param(9000, 24, id="many-inputs"),
        pytest.param(7, 1000, id="few-inputs"),
    ],
)
@ORDERS
@KERNELS
@pytest.mark.usefixtures("blocks_for_any_number_of_rows")
def test_product_equals_numpys_and_repeats(inputs, outputs, order, small_kernels, monkeypatch):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: small_kernels)
    x, weight = random_operands(rows=40, inputs=inputs, outputs=outputs, order=order)
    expected = x @ weight
    for n in (1, 2, 3, 4, 8, 33, 40):
        computed = product(x[:n], weight)
        np.testing.assert_allclose(computed, expected[:n], rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(product(x[:n], weight), computed)


@ORDERS
@KERNELS
@pytest.mark.usefixtures("blocks_for_any_number_of_rows")
def test_rows_need_not_be_side_by_side_in_memory(order, small_kernels, monkeypatch):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: small_kernels)
    x, weight = random_operands(rows=80, inputs=50, outputs=400, order=order)
    every_second_row_mirrored = x[::2, ::-1]
    for n in (1, 2, 40):
        rows = every_second_row_mirrored[:n]
        np.testing.assert_allclose(product(rows, weight), rows @ weight, rtol=1e-10, atol=1e-10)


@ORDERS
@KERNELS
@pytest.mark.usefixtures("blocks_for_any_number_of_rows")
@pytest.mark.parametrize("n", [1, 2, 40])
def test_a_product_with_one_operand_in_float64_is_float64(order, small_kernels, monkeypatch, n):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: small_kernels)
    x, weight = random_operands(rows=n, inputs=50, outputs=400, order=order)
    assert product(x, weight.astype(np.float32)).dtype == np.float64
    assert product(x.astype(np.float32), weight).dtype == np.float64


def test_each_thread_reads_half_of_the_weights_in_row_order(monkeypatch):
    halves = []
    sum_of_blocks = products.sum_of_blocks

    def watched(rows, weight):
        halves.append(weight)
        return sum_of_blocks(rows, weight)

    monkeypatch.setattr(products, "sum_of_blocks", watched)
    x, weight = random_operands(rows=4, inputs=768, outputs=2304, order="C")
    product(x, weight)
    first, second = halves
    assert first.shape == (768 / 2, 2304)
    assert second.shape == (768 / 2, 2304)
    assert not np.shares_memory(first, second)


@KERNELS
def test_weights_in_column_order_are_read_once_in_blocks(
    stacked_products, small_kernels, monkeypatch
):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: small_kernels)
    x, weight = random_operands(rows=5, inputs=768, outputs=5003)
    product(x, weight)
    weights_read = 0
    for blocks, _ in stacked_products:
        assert blocks.shape[-2:] == (products.BLOCK_OUTPUTS, 768)
        weights_read += blocks.size
    # One thread has 2501 of the 5003 outputs, and the other has 2502. The last few outputs of each
    # thread do not fill a block.
    outputs_in_no_block = 2501 % products.BLOCK_OUTPUTS + 2502 % products.BLOCK_OUTPUTS
    assert weights_read == (5003 - outputs_in_no_block) * 768


@pytest.mark.parametrize(
    "inputs", [pytest.param(768, id="GPT-2-124M"), pytest.param(1600, id="GPT-2-XL")]
)
def test_with_avx_512_each_product_is_small_enough_to_be_made_without_a_copy(
    stacked_products, inputs
):
    _, weight = random_operands(rows=1, inputs=inputs, outputs=400)
    x, _ = random_operands(rows=few_rows(weight), inputs=inputs, outputs=1)
    product(x, weight)
    assert len(stacked_products) == 2, "one of each thread"
    for blocks, factor in stacked_products:
        one_block = blocks[0]
        columns = factor.shape[1]  # one for each row of x
        multiplications = one_block.size * columns
        assert multiplications <= 10**6, "OpenBLAS copies larger matrices"


def test_with_other_kernels_each_block_is_multiplied_by_one_row_at_a_time(
    stacked_products, monkeypatch
):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: False)
    x, weight = random_operands(rows=5, inputs=768, outputs=5003)
    product(x, weight)
    assert len(stacked_products) == 2, "one of each thread"
    for _, factor in stacked_products:
        assert factor.shape == (5, 768, 1)  # a column for each of the five rows of x


@pytest.mark.parametrize(
    ("order", "small_kernels", "most"),
    [
        pytest.param("C", True, 4, id="row-order-AVX-512"),
        pytest.param("C", False, 4, id="row-order-AVX2"),
        pytest.param("F", True, 32, id="column-order-AVX-512"),
        pytest.param("F", False, 6, id="column-order-AVX2"),
    ],
)
def test_more_rows_are_left_to_blas(order, small_kernels, most, monkeypatch):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: small_kernels)
    # The products of one row and of many rows are BLAS's. The others would be made in blocks.
    monkeypatch.setattr(threads, "in_two_threads", lambda *_: pytest.fail("in blocks"))
    x, weight = random_operands(rows=most + 1, inputs=768, outputs=400, order=order)
    for n in (1, most + 1):
        np.testing.assert_array_equal(product(x[:n], weight), x[:n] @ weight)
    for n in (2, most):
        with pytest.raises(pytest.fail.Exception, match="in blocks"):
            product(x[:n], weight)


@pytest.mark.parametrize(
    ("blas_threads", "most"),
    [
        pytest.param(1, 4, id="one-core"),
        pytest.param(4, 4, id="four-cores"),
        pytest.param(5, 1, id="five-cores"),
        pytest.param(None, 1, id="another-BLAS"),
    ],
)
def test_on_many_cores_and_with_another_blas_no_rows_are_few(blas_threads, most, monkeypatch):
    """few_rows is then 1, so that every product is left to BLAS."""
    monkeypatch.setattr(blas, "blas_threads", lambda: blas_threads)
    assert few_rows(np.zeros((768, 2304))) == most


def test_small_weights_and_strided_ones_are_left_to_blas(monkeypatch):
    """few_rows is the most rows for which a product is made in blocks; 1 is for none."""
    monkeypatch.setattr(products, "MIN_WEIGHT", 512 * 512)
    assert few_rows(np.zeros((512, 512))) > 1
    assert few_rows(np.zeros((512, 511))) == 1
    every_second_row_and_column = np.zeros((1024, 1024))[::2, ::2]
    assert few_rows(every_second_row_and_column) == 1


@pytest.mark.usefixtures("blocks_for_any_number_of_rows")
@ORDERS
def test_several_threads_may_call_product_at_once(order):
    operands = []
    for rows in range(2, 8):
        operands.append(random_operands(rows=rows, inputs=300, outputs=900, order=order))
    operands *= 10  # each product is made ten times
    with ThreadPoolExecutor(6) as pool:
        computed = [pool.submit(product, x, weight) for x, weight in operands]
    for (x, weight), future in zip(operands, computed, strict=True):
        np.testing.assert_allclose(future.result(), x @ weight, rtol=1e-10, atol=1e-10)


def test_a_training_has_no_more_than_four_threads(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 64)
    assert threads.training_threads(n_embd=64) == 4
    monkeypatch.setattr(threads, "cores", lambda: 3)
    assert threads.training_threads(n_embd=64) == 3


def test_two_threads_return_their_results_in_order():
    assert threads.in_two_threads(lambda: 1, lambda: 2) == (1, 2)
    with blas.one_blas_thread():
        assert threads.in_two_threads(lambda: 1, lambda: 2) == (1, 2)


def raise_memory_error():
    raise MemoryError


def return_zero():
    return 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(raise_memory_error, return_zero, id="first"),
        pytest.param(return_zero, raise_memory_error, id="second"),
    ],
)
def test_an_error_in_either_half_is_raised_and_the_next_call_works(first, second):
    with pytest.raises(MemoryError):
        threads.in_two_threads(first, second)
    x, weight = random_operands(rows=3, inputs=100, outputs=200)
    np.testing.assert_allclose(product(x, weight), x @ weight, rtol=1e-10)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs pthread_kill")
def test_the_calls_after_an_interrupted_call_return_their_own_results():
    """Ctrl-C comes while the main thread waits for the other thread."""

    def interrupt_main_thread():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.5)  # so that the interrupted call ends before this function returns

    with pytest.raises(KeyboardInterrupt):
        threads.in_two_threads(return_zero, interrupt_main_thread)

    assert threads.in_two_threads(lambda: 1, lambda: 2) == (1, 2)
    assert threads.in_two_threads(lambda: 3, lambda: 4) == (3, 4)


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


def test_the_callers_errstate_holds_in_both_threads():
    def overflow_setting():
        return np.geterr()["over"]

    with np.errstate(over="raise"):
        settings = threads.in_two_threads(overflow_setting, overflow_setting)
    assert settings == ("raise", "raise")


@pytest.fixture
def other_thread_limits_blas():
    """During the test, another thread limits BLAS to one thread."""
    blas_is_limited = threading.Event()
    test_has_ended = threading.Event()

    def limit():
        with blas.one_blas_thread():
            blas_is_limited.set()
            test_has_ended.wait(5)

    thread = threading.Thread(target=limit)
    thread.start()
    assert blas_is_limited.wait(5)
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
    x, weight = random_operands(rows=3, inputs=100, outputs=200)
    expected = x @ weight
    pid = os.fork()
    is_child = pid == 0
    if is_child:
        code = 1
        signal.alarm(30)  # ends this process if its second thread never answers
        try:
            assert not blas.is_limited()
            assert blas.blas_threads() == thread_count
            results = threads.in_two_threads(lambda: x @ weight, lambda: x @ weight)
            for result in results:
                np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)
            code = 0
        finally:
            os._exit(code)  # this process is not to run the other tests
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
