"""Few rows times a weight: the numbers of one matrix product, from any thread and in a forked
process."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tiedgpt.fast import blas, products, threads
from tiedgpt.fast.products import product


@pytest.fixture(autouse=True)
def grids(monkeypatch):
    """Grids whatever the machine and the matrix; a pair of threads."""
    monkeypatch.setattr(products, "MIN_WEIGHT", 0)
    monkeypatch.setattr(products, "MIN_SIZE", 1)
    monkeypatch.setattr(products, "most_rows", lambda: 120)
    monkeypatch.setattr(threads, "reading_threads", lambda: 2)
    monkeypatch.setattr(blas, "has_small_kernels", lambda: True)


def case(rows, size, outputs, order="F", dtype=np.float64):
    rng = np.random.default_rng(rows + outputs)
    weight = np.asarray(rng.standard_normal((size, outputs)), dtype, order=order)
    return rng.standard_normal((rows, size)).astype(dtype), weight


@pytest.mark.parametrize(
    ("size", "outputs"),
    [(5, 3), (96, 1), (128, 64), (768, 2304), (3072, 77), (9000, 24), (7, 1000)],
)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kernels", [True, False])
def test_the_numbers_of_one_product(size, outputs, order, kernels, monkeypatch):
    monkeypatch.setattr(blas, "has_small_kernels", lambda: kernels)
    x, weight = case(121, size, outputs, order)
    expected = x @ weight
    for n in (1, 2, 3, 4, 8, 33, 70, 120, 121):
        found = product(x[:n], weight)
        np.testing.assert_allclose(found, expected[:n], rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(product(x[:n], weight), found)


def test_the_dtype_is_that_of_a_product_wherever_the_rows_lie():
    x, weight = case(180, 50, 400)
    for n in (1, 2, 40, 90):
        rows = x[: 2 * n : 2, ::-1]
        assert product(rows, weight.astype(np.float32)).dtype == np.float64
        assert product(rows.astype(np.float32), weight).dtype == np.float64
        np.testing.assert_allclose(product(rows, weight), rows @ weight, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("rows", "order", "outputs"),
    [(4, "C", 2304), (32, "C", 2304), (47, "C", 2304), (4, "F", 5003), (32, "F", 5003)],
)
def test_each_weight_is_read_once_in_matrices_that_are_not_packed(
    monkeypatch, rows, order, outputs
):
    seen, matmul = [], np.matmul
    monkeypatch.setattr(
        np, "matmul", lambda a, b, out: seen.append((a, b)) or matmul(a, b, out=out)
    )
    product(*case(rows, 768, outputs, order))
    weights = [weight for weight, _ in seen]
    assert sum(weight.size for weight in weights) == 768 * outputs
    sizes = [weight[0].size for weight in weights if weight.ndim > 2]
    inputs = products.FEW_INPUTS if rows <= products.FEW_ROWS else products.INPUTS
    assert len(sizes) == (2 if order == "F" else 768 // inputs)
    assert all(size * rows < 10**6 for size in sizes)


@pytest.mark.parametrize(("rows", "order", "blocks"), [(3, "C", 12), (7, "C", 12), (3, "F", 40)])
def test_rows_are_multiplied_one_by_one_for_kernels_that_pack(monkeypatch, rows, order, blocks):
    monkeypatch.setattr(products, "most_rows", lambda: products.OTHER_ROWS)
    monkeypatch.setattr(blas, "has_small_kernels", lambda: False)
    shapes, matmul = [], np.matmul
    monkeypatch.setattr(
        np, "matmul", lambda a, b, out: shapes.append(out.shape) or matmul(a, b, out=out)
    )
    product(*case(rows, 768, 5120, order))
    shapes = [shape for shape in shapes if 0 not in shape]
    assert all(1 in shape[-2:] for shape in shapes)
    assert sum(np.prod(shape[:-2]) for shape in shapes) == blocks * rows


@pytest.mark.parametrize(
    ("blas_threads", "kernels", "most"),
    [(2, True, 47), (2, False, 10), (4, True, 47), (4, False, 10), (16, True, 1), (None, True, 1)],
)
def test_grids_are_used_where_they_were_measured(blas_threads, kernels, most, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(blas, "blas_threads", lambda: blas_threads)
    monkeypatch.setattr(blas, "has_small_kernels", lambda: kernels)
    assert products.most_rows() == most


def test_several_threads_of_the_user():
    cases = [case(2 + n, 300, 900) for n in range(6)] * 10
    with ThreadPoolExecutor(6) as pool:
        for (x, weight), out in zip(
            cases, pool.map(product, *zip(*cases, strict=True)), strict=True
        ):
            np.testing.assert_allclose(out, x @ weight, rtol=1e-10, atol=1e-10)


def test_an_error_in_either_half_is_raised_and_the_next_call_works():
    def fail():
        raise MemoryError

    for halves in ((fail, int), (int, fail)):
        with pytest.raises(MemoryError):
            threads.in_two_threads(*halves)
        x, weight = case(3, 100, 200)
        np.testing.assert_allclose(product(x, weight), x @ weight, rtol=1e-10)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs pthread_kill")
def test_an_interrupt_while_waiting_leaves_the_next_calls_right():
    """As after a Ctrl-C at a prompt: the answer of the interrupted call is not that of the next
    one."""
    release = threading.Event()

    def interrupted():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        release.wait(0.5)

    with pytest.raises(KeyboardInterrupt):
        threads.in_two_threads(int, interrupted)
    for _ in range(2):
        done = []
        threading.Timer(0.05, release.set).start()
        threads.in_two_threads(int, lambda done=done: done.append(release.wait(5)))
        assert done == [True]
        release.clear()


@pytest.mark.parametrize("interrupted", ["entering", "leaving"])
def test_an_interrupt_while_the_thread_count_is_set_leaves_it_as_it_was(monkeypatch, interrupted):
    counts = [2]

    def set_count(n):
        counts.append(n)
        if len(counts) == {"entering": 2, "leaving": 3}[interrupted]:
            raise KeyboardInterrupt

    functions = {"get_num_threads": lambda: counts[-1], "set_num_threads": set_count}
    monkeypatch.setattr(blas, "openblas", functions.get)
    with pytest.raises(KeyboardInterrupt), blas.one_blas_thread():
        assert blas.is_limited()
    assert counts[-1] == blas.blas_threads() == 2
    assert not blas.is_limited()


def test_the_callers_errstate_holds_in_both_threads():
    seen = []
    with np.errstate(over="raise"):
        threads.in_two_threads(*[lambda: seen.append(np.geterr()["over"])] * 2)
    assert seen == ["raise", "raise"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    """Although another thread of its parent has limited BLAS to one."""
    x, weight = case(3, 100, 200)
    expected, count = product(x, weight), blas.blas_threads()
    entered, leave = threading.Event(), threading.Event()

    def limit():
        with blas.one_blas_thread():
            entered.set()
            leave.wait(5)

    thread = threading.Thread(target=limit)
    thread.start()
    assert entered.wait(5)
    pid = os.fork()
    if pid == 0:
        try:
            same = not blas.is_limited() and blas.blas_threads() == count
            os._exit(0 if same and np.array_equal(product(x, weight), expected) else 1)
        finally:
            os._exit(2)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
