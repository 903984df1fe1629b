"""Python threads share a long text, or a batch of training. The results do not change.

While Python threads share the work, BLAS uses one thread.

Several threads read a long text in pieces of at most PIECE_TOKENS tokens. In each layer, the thread
of a piece puts the keys and values of its tokens into the cache, with KVCache.extend. Then it waits
until the keys and values of all earlier pieces are there. The pieces share the arrays of the cache,
but each piece has a KVCache object of its own, whose `length` is the number of tokens before it.

The texts of these tests have T tokens. Two threads, or four, read such a text in N_PIECES pieces,
which begin at the places PIECE_STARTS. `set_reading_threads(n)` makes n the number of Python
threads that read.
"""

import concurrent.futures
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2, threads
from tiedgpt.gpt2 import prefill
from tiedgpt.gpt2.run import KVCache
from tiedgpt.training import loop
from tiedgpt.training.loop import Trainer
from tiedgpt.training.start import Settings

PIECE_TOKENS = 128  # the most tokens of a piece, which the fixture small_pieces sets
# Three tokens more than two pieces hold. Each thread reads the same number of pieces, so two
# threads read two pieces each, and four threads read one piece each.
T = 2 * PIECE_TOKENS + 3
N_PIECES = 4
PIECE_STARTS = range(0, T, math.ceil(T / N_PIECES))
IDS = np.random.default_rng(0).integers(0, SMALL.vocab_size, T)
LONG = replace(SMALL, n_ctx=T, n_layer=3)
DEEP = replace(LONG, n_layer=50)  # so many layers that a piece is not read in a moment
MODEL = random_model(LONG, dtype=np.float64)
SHARED = [  # how many threads read how many sequences
    pytest.param(1, 2, id="1-thread-2-sequences"),
    pytest.param(2, 1, id="2-threads-1-sequence"),
    pytest.param(3, 2, id="3-threads-2-sequences"),
    pytest.param(4, 1, id="4-threads-1-sequence"),
]
assert_close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)


def logits_in_one_pass(ids):
    """The logits of MODEL. With a tape, it reads the whole text at once and not in pieces."""
    return MODEL(ids, tape={})


def some_texts(B):
    """The first B of two texts of T tokens: IDS, and IDS in reverse order."""
    two_texts = np.stack([IDS, IDS[::-1]])
    return two_texts[:B]


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread():
    """BLAS and the processes of these tests have their usual threads, which are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        yield


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Make pieces so small that a short text has several."""
    monkeypatch.setattr(prefill, "PIECE_TOKENS", PIECE_TOKENS)


@pytest.fixture
def blas_threads():
    """blas_threads() -> the number of BLAS threads. It is two when a test begins."""
    get_threads = threads.openblas("get_num_threads")
    set_threads = threads.openblas("set_num_threads")
    if get_threads is None:
        pytest.skip("this NumPy does not bring an OpenBLAS")
    before = get_threads()
    set_threads(2)
    yield get_threads
    set_threads(before)


@pytest.fixture
def set_reading_threads(monkeypatch):
    """set_reading_threads(n): n Python threads read a text, as on a machine with n cores."""
    return lambda n: monkeypatch.setattr(threads, "reading_threads", lambda: n)


# How many threads there are


def test_blas_has_one_thread_until_the_last_of_several_contexts_ends(blas_threads):
    """A program reads two texts at once, and the user interrupts the first one."""
    with ExitStack() as second_text:
        with suppress(KeyboardInterrupt), threads.one_blas_thread():  # the first text begins
            second_text.enter_context(threads.one_blas_thread())  # the second text begins
            raise KeyboardInterrupt  # the first text ends
        assert blas_threads() == 1  # the second text is still read
    assert blas_threads() == 2  # as many as at first


def test_a_context_that_is_ended_twice_ends_no_other(blas_threads):
    """Ctrl-C in the middle of the end has it repeated."""
    with threads.one_blas_thread():
        threads._end(object())
        assert blas_threads() == 1
    assert blas_threads() == 2
    threads.single_thread()
    assert blas_threads() == 1


def test_the_openblas_of_numpy_is_found():
    """Without it, the tests that use the fixture blas_threads are skipped."""
    package = Path(np.__file__).parent
    brought = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    if not brought:
        pytest.skip("this NumPy does not bring an OpenBLAS")
    assert threads.openblas("get_num_threads")() >= 1
    assert threads.openblas("no_such_function") is None


@pytest.mark.parametrize("folder", ["numpy.libs", "numpy/.dylibs"])  # Linux, macOS
@pytest.mark.parametrize("prefix", ["scipy_openblas", "openblas"])  # NumPy 2, NumPy 1
def test_the_openblas_of_each_system_and_version_is_found(tmp_path, monkeypatch, folder, prefix):
    library = tmp_path / folder / "libopenblas64_.so"
    library.parent.mkdir(parents=True)
    library.touch()
    functions = {f"{prefix}_get_num_threads64_": "the function"}
    loaded = []

    def load(path):
        loaded.append(path)
        return SimpleNamespace(**functions)

    monkeypatch.setattr(np, "__path__", [str(tmp_path / "numpy")])
    monkeypatch.setattr(threads.ctypes, "CDLL", load)
    assert threads.openblas.__wrapped__("get_num_threads") == "the function"
    assert threads.openblas.__wrapped__("set_num_threads") is None
    assert set(loaded) == {str(library)}


def test_a_file_that_only_has_the_name_of_openblas_is_passed_over(tmp_path, monkeypatch):
    libraries = tmp_path / "numpy.libs"
    libraries.mkdir()
    (libraries / "libopenblas.so").write_text("no library")
    monkeypatch.setattr(np, "__path__", [str(tmp_path / "numpy")])
    assert threads.openblas.__wrapped__("get_num_threads") is None


@pytest.mark.usefixtures("blas_threads")
def test_reading_threads_are_as_many_as_blas_had_before_it_was_limited():
    """BLAS had two threads. Two contexts limit it, as when a program reads two texts at once."""
    with threads.one_blas_thread(), threads.one_blas_thread():
        assert threads.reading_threads() == 2


@pytest.mark.parametrize(
    ("n_blas_threads", "n_reading_threads"),
    [
        pytest.param(1, 1, id="1-core"),
        pytest.param(2, 2, id="2-cores"),
        pytest.param(threads.MAX_THREADS, threads.MAX_THREADS, id="max-threads-cores"),
        pytest.param(threads.MAX_THREADS + 1, 1, id="more-cores"),
        pytest.param(None, 1, id="another-blas"),
    ],
)
def test_how_many_python_threads_read_a_text(monkeypatch, n_blas_threads, n_reading_threads):
    """On more than MAX_THREADS cores, one Python thread reads, and BLAS uses all cores.

    None stands for a BLAS that is not OpenBLAS, so that its threads are not known.
    """

    def openblas(function):
        if n_blas_threads is None:
            return None
        return lambda: n_blas_threads

    monkeypatch.setattr(threads, "openblas", openblas)
    assert threads.reading_threads() == n_reading_threads


def test_another_blas_keeps_its_threads(monkeypatch):
    monkeypatch.setattr(threads, "openblas", lambda function: None)
    threads.single_thread()
    with threads.one_blas_thread():
        assert threads.blas_threads() is None


@pytest.mark.parametrize(
    ("python_threads", "expected"),
    [pytest.param(2, 1, id="shared"), pytest.param(1, 2, id="not-shared")],
)
def test_blas_has_one_thread_while_threads_share_a_batch(
    blas_threads, monkeypatch, python_threads, expected
):
    """BLAS has two threads at first. It keeps both if one Python thread computes the batch."""
    write_gradients = loop.write_gradients
    numbers_of_threads = set()

    def look_and_write_gradients(*arguments):
        numbers_of_threads.add(blas_threads())
        return write_gradients(*arguments)

    monkeypatch.setattr(loop, "write_gradients", look_and_write_gradients)
    settings = Settings(steps=2, batch=2, context=8, warm_up=0, threads=python_threads)
    trainer = Trainer(random_model(), IDS, IDS[:40], settings)
    list(trainer.run())
    assert numbers_of_threads == {expected}
    assert blas_threads() == 2


# Texts that are read in pieces


@pytest.mark.parametrize(("n_threads", "B"), SHARED)
def test_each_thread_reads_the_same_number_of_pieces_of_about_equal_length(
    set_reading_threads, n_threads, B
):
    """`progress` is called with the length of each piece: the tokens that it has of each text."""
    set_reading_threads(n_threads)
    lengths = []  # of the pieces
    MODEL.final(some_texts(B), MODEL.new_cache(B), progress=lengths.append)
    assert sum(lengths) == T
    assert len(lengths) % n_threads == 0
    assert max(lengths) <= PIECE_TOKENS
    # The length of a piece is T / n_pieces, rounded up. The last piece has the tokens that are
    # left. Each of the others has less than one token more than T / n_pieces.
    n_pieces = len(lengths)
    assert max(lengths) - min(lengths) < n_pieces


@pytest.mark.parametrize("slow_piece", [0, 1, 2])  # no piece waits for the last piece, 3
def test_each_piece_waits_for_the_keys_and_values_of_the_piece_before(
    set_reading_threads, monkeypatch, slow_piece
):
    """One piece is slow in each layer. The logits are still those of one pass."""
    set_reading_threads(4)
    extend = KVCache.extend
    slow_layers = []

    def extend_slowly(cache_of_piece, layer, k, v):
        if cache_of_piece.length == PIECE_STARTS[slow_piece]:
            slow_layers.append(layer)
            time.sleep(0.05)
        return extend(cache_of_piece, layer, k, v)

    monkeypatch.setattr(KVCache, "extend", extend_slowly)
    cache = MODEL.new_cache()
    # A key or value that is read too early makes the logits NaN.
    cache.keys[...] = np.nan
    cache.values[...] = np.nan
    assert_close(MODEL(IDS, cache), logits_in_one_pass(IDS))
    assert slow_layers == list(range(LONG.n_layer)), "the piece was slow in every layer"


@pytest.fixture
def thread_maps(monkeypatch):
    """The numbers of threads with which prefill calls thread_map, in a list.

    Only a text of several pieces is read by a thread_map.
    """
    thread_map = prefill.thread_map
    numbers = []

    def recorded(n_threads):
        numbers.append(n_threads)
        return thread_map(n_threads)

    monkeypatch.setattr(prefill, "thread_map", recorded)
    return numbers


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(IDS[: 2 * threads.MIN_TOKENS - 1], id="a-short-text"),
        pytest.param(np.tile(IDS[:1], (500, 1)), id="500-texts-of-one-token"),
    ],
)
def test_few_tokens_are_not_shared(set_reading_threads, thread_maps, ids):
    """Each of two threads needs MIN_TOKENS tokens.

    Every piece has tokens of all texts, so texts of one token cannot be cut into pieces.
    """
    set_reading_threads(2)
    MODEL(ids)
    assert thread_maps == []


def test_min_tokens_for_each_thread_are_shared(set_reading_threads, thread_maps):
    set_reading_threads(2)
    MODEL(IDS[: 2 * threads.MIN_TOKENS])
    assert thread_maps == [2]


@pytest.mark.parametrize(("tokens", "used"), [(127, 1), (128, 2), (129, 2)])
def test_each_thread_has_64_tokens_or_more(set_reading_threads, tokens, used):
    set_reading_threads(2)
    n_threads, piece_tokens = threads.split_work(rows=tokens, most_rows=1000, tokens=tokens)
    assert n_threads == used
    assert piece_tokens == math.ceil(tokens / used)


def test_threads_use_the_callers_errstate(set_reading_threads):
    """np.errstate says whether an overflow is an error. Each thread has its own setting."""
    set_reading_threads(2)
    parameters = dict(random_model(LONG).parameters)
    for name, array in parameters.items():
        if "c_fc" in name:
            parameters[name] = array * np.float32(1e30)  # the gelu after it overflows
    gpt2 = GPT2(LONG, parameters)
    with np.errstate(all="ignore"):
        gpt2(IDS)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        gpt2(IDS)


# A program whose thread reads a text after the main thread has ended. It prints the shape of the
# logits and the number of losses.
READ_LATE = f"""
import threading, numpy, tiedgpt
from tiedgpt.evaluation import token_losses
config = tiedgpt.Config(
    vocab_size=7, n_ctx={T}, n_embd=6, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None
)
model = tiedgpt.GPT2.random(config)
ids = numpy.zeros({T}, int)
def read():
    threading.main_thread().join()
    print(model(ids).shape)
    stride = 9
    print(len(token_losses(model, ids, stride)))
threading.Thread(target=read).start()
"""


def test_a_thread_reads_a_text_after_the_main_thread_has_ended():
    """Python cannot start the threads of a pool then, so one thread reads all pieces."""
    command = [sys.executable, "-c", READ_LATE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    logits_shape = (T, 7)
    n_losses = T - 1  # of all tokens but the first
    assert done.stdout == f"{logits_shape}\n{n_losses}\n"


# Programs whose thread works on after the main thread has ended. The first one has imported nothing
# of tiedgpt before. In the second one a training is in its second of 40 steps at that time.
LOAD_LATE = """
import threading, tiedgpt
def work():
    threading.main_thread().join()
    print(tiedgpt.load_model("shakespeare-tied")([1, 2, 3]).shape)
threading.Thread(target=work).start()
"""
TRAIN_LATE = """
import threading, numpy, tiedgpt
from tiedgpt.training.loop import Settings, Trainer
config = tiedgpt.Config(
    vocab_size=7, n_ctx=8, n_embd=6, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None
)
ids = numpy.arange(99) % 7
settings = Settings(steps=40, context=8, batch=4, threads=2)
trainer = Trainer(tiedgpt.GPT2.random(config), ids, ids, settings)
has_begun = threading.Event()
def work():
    for record in trainer.run():
        if record["step"] == 1:
            has_begun.set()
            threading.main_thread().join()
    print(record["step"])
threading.Thread(target=work).start()
has_begun.wait()
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(LOAD_LATE, "(3, 1024)", id="load", marks=pytest.mark.slow),
        pytest.param(TRAIN_LATE, "40", id="train", marks=pytest.mark.slow),
    ],
)
def test_a_thread_works_after_the_main_thread_has_ended(program, printed):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (printed, "")


# Errors while a text is read in four pieces by two threads. KVCache.extend is called in each layer
# of each piece.
CALLS_OF_A_PIECE = DEEP.n_layer


@pytest.mark.parametrize("failing_piece", [0, 1, N_PIECES - 1])
def test_an_error_in_one_piece_ends_the_others(set_reading_threads, monkeypatch, failing_piece):
    """Two threads read four pieces. One of the pieces fails in layer 1 of 50."""
    set_reading_threads(2)
    gpt2 = random_model(DEEP)
    extend = KVCache.extend
    calls = []

    def extend_or_fail(cache_of_piece, layer, k, v):
        calls.append(layer)
        if cache_of_piece.length == PIECE_STARTS[failing_piece] and layer == 1:
            raise MemoryError
        return extend(cache_of_piece, layer, k, v)

    monkeypatch.setattr(KVCache, "extend", extend_or_fail)
    cache = gpt2.new_cache()
    threads_before = threading.active_count()
    with pytest.raises(MemoryError):
        gpt2.final(IDS, cache)
    assert cache.length == 0
    assert threading.active_count() == threads_before
    # The pieces after the failing piece wait for it in layer 1 at the latest, and make few calls
    # before they end. If the last piece fails, the three pieces before it may make all their calls.
    if failing_piece < N_PIECES - 1:
        assert len(calls) < 3 * CALLS_OF_A_PIECE


def test_ctrl_c_after_the_first_piece_ends_the_others(set_reading_threads, monkeypatch):
    """Two threads read four pieces. `progress` is called as soon as the first piece is read."""
    set_reading_threads(2)
    gpt2 = random_model(DEEP)
    extend = KVCache.extend
    cancel_all = prefill.cancel_all
    pieces_are_cancelled = threading.Event()
    calls = []

    def extend_and_count(cache_of_piece, layer, k, v):
        calls.append(layer)
        if layer == 0 and cache_of_piece.length == PIECE_STARTS[2]:
            # On a busy machine, it could be read before the main thread gets the first piece.
            pieces_are_cancelled.wait(10)
        return extend(cache_of_piece, layer, k, v)

    def cancel_all_and_say_so(pieces):
        cancel_all(pieces)
        pieces_are_cancelled.set()

    def press_ctrl_c(piece_length):
        raise KeyboardInterrupt

    monkeypatch.setattr(KVCache, "extend", extend_and_count)
    monkeypatch.setattr(prefill, "cancel_all", cancel_all_and_say_so)
    cache = gpt2.new_cache()
    threads_before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        gpt2.final(IDS, cache, progress=press_ctrl_c)
    assert cache.length == 0
    assert threading.active_count() == threads_before
    # The two threads have then read the first piece, and perhaps the second. A third piece has not
    # made all its calls.
    assert len(calls) < 3 * CALLS_OF_A_PIECE


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_callers_errstate_holds_in_all_threads(n_threads):
    of_caller = {"over": "raise", "divide": "ignore", "invalid": "raise", "under": "raise"}
    with np.errstate(**of_caller), threads.thread_map(n_threads) as map_shares:
        settings = list(map_shares(lambda share: np.geterr(), range(n_threads)))
    assert settings == [of_caller] * n_threads


@pytest.mark.parametrize(("n_threads", "of_blas"), [(1, 2), (2, 1)])
def test_blas_has_one_thread_while_several_threads_share_a_map(blas_threads, n_threads, of_blas):
    with threads.thread_map(n_threads) as map_shares:
        assert list(map_shares(lambda share: blas_threads(), range(3))) == [of_blas] * 3
    assert blas_threads() == 2


def test_a_pool_has_as_many_threads_as_it_is_given():
    """Each of three calls waits until all three have begun. A fourth thread begins none."""
    all_have_begun = threading.Barrier(3)

    def call(number):
        all_have_begun.wait(timeout=10)
        return threading.get_ident()

    with threads.thread_pool(3) as pool_map:
        assert len(set(pool_map(call, range(3)))) == 3
        assert len(set(pool_map(call, range(9)))) == 3


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_map_of_several_threads_is_that_of_python(n_threads):
    """The results are in the order of the arguments. The shortest of the iterables ends it."""

    def later_first(number, other):
        time.sleep(0.002 / number)
        return number, other

    with threads.thread_map(n_threads) as map_calls:
        assert list(map_calls(later_first, [1, 2, 3], "ab")) == [(1, "a"), (2, "b")]


def raise_as_python_does(*arguments):
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")


def test_a_pool_that_python_has_closed_calls_in_the_thread_that_asks(monkeypatch):
    """Python closes all pools when the main thread ends. Then it imports none, either."""
    with threads.thread_pool(2) as pool_map:
        monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", raise_as_python_does)
        assert list(pool_map(lambda n: (n, threading.get_ident()), [1, 2])) == [
            (1, threading.get_ident()),
            (2, threading.get_ident()),
        ]
    monkeypatch.delattr(concurrent.futures, "ThreadPoolExecutor")
    monkeypatch.setattr(concurrent.futures, "__getattr__", raise_as_python_does)
    with threads.thread_pool(2) as pool_map:
        assert list(pool_map(abs, [-1, -2])) == [1, 2]


def test_calls_that_have_not_begun_are_dropped_when_the_block_of_a_pool_fails():
    begun = []

    def call(number):
        begun.append(number)
        time.sleep(0.01)

    n_calls = 4000  # which take 20 seconds on two threads
    with suppress(KeyboardInterrupt), threads.thread_pool(2) as pool_map:
        pool_map(call, range(n_calls))
        raise KeyboardInterrupt
    assert len(begun) < n_calls


@pytest.mark.parametrize(
    ("width", "blas", "used"),
    [
        (639, 8, 3),
        (640, 8, 1),
        (641, 8, 1),
        (512, 8, 3),
        (768, 8, 1),  # GPT-2 124M
        (8, None, 1),  # another BLAS, whose threads nobody can set
    ],
)
def test_how_many_threads_share_a_training_batch(monkeypatch, width, blas, used):
    """In a wide model, BLAS has the cores."""
    monkeypatch.setattr(threads, "cores", lambda: 3)
    monkeypatch.setattr(threads, "blas_threads", lambda: blas)
    assert threads.training_threads(width) == used


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5}, raising=False)
    assert threads.cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert threads.cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert threads.cores() == 1


def test_a_training_has_no_more_than_four_threads(monkeypatch):
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)
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
    monkeypatch.setattr(threads, "openblas", lambda name: functions[name])
    with pytest.raises(KeyboardInterrupt), threads.one_blas_thread():
        assert get_num_threads() == 1
    assert get_num_threads() == 2
    # If the first block were still there, this one would not be the last.
    with threads.one_blas_thread():
        assert get_num_threads() == 1
    assert get_num_threads() == 2
    assert threads.blas_threads() == 2


@pytest.fixture
def other_thread_limits_blas():
    """During the test, another thread limits BLAS to one thread. Before, it has two."""
    before = threads.blas_threads()
    if before is not None:
        threads.openblas("set_num_threads")(2)
    blas_is_limited = threading.Event()
    test_has_ended = threading.Event()

    def limit():
        with threads.one_blas_thread():
            blas_is_limited.set()
            test_has_ended.wait(60)

    thread = threading.Thread(target=limit)
    thread.start()
    assert blas_is_limited.wait(60)
    yield
    test_has_ended.set()
    thread.join()
    if before is not None:
        threads.openblas("set_num_threads")(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("other_thread_limits_blas")
def test_a_forked_process_has_threads_of_its_own():
    """Another thread of the parent limits BLAS to one thread. In the child, BLAS is not limited."""
    thread_count = threads.blas_threads()  # that BLAS has without the limit
    lock_of_parent = threads._running.lock
    lock_of_parent.acquire()  # as if a thread were in the middle of setting the number
    pid = os.fork()
    is_child = pid == 0
    if is_child:
        code = 1
        signal.alarm(60)  # ends this process if its threads never answer
        try:
            if thread_count is not None:  # with another BLAS there is no limit
                assert threads.openblas("get_num_threads")() == thread_count
            assert threads.blas_threads() == thread_count
            with threads.thread_map(2) as map_shares:
                assert list(map_shares(abs, [-1, -2])) == [1, 2]
            if thread_count is not None:  # the blocks of the parent do not limit BLAS here
                assert threads.openblas("get_num_threads")() == thread_count
            code = 0
        finally:
            os._exit(code)  # this process is not to run the other tests
    lock_of_parent.release()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
