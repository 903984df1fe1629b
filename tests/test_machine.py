"""Threads: BLAS has one while several Python threads read a text, and results do not depend on
them."""

import math
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2
from tiedgpt.fast import blas, threads
from tiedgpt.gpt2 import prefill
from tiedgpt.gpt2.run import KVCache
from tiedgpt.training import loop
from tiedgpt.training.loop import Settings, Trainer

PIECE_TOKENS = 128
T = 2 * PIECE_TOKENS + 3  # enough for four threads
LONG = replace(SMALL, n_ctx=T, n_layer=3)
IDS = np.random.default_rng(0).integers(0, SMALL.vocab_size, T)
MODEL = random_model(LONG, dtype=np.float64)
STARTS = range(0, T, math.ceil(T / 4))  # of four equal pieces
assert_close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(prefill, "PIECE_TOKENS", PIECE_TOKENS)
    monkeypatch.setattr(prefill, "QUERY_TOKENS", PIECE_TOKENS // 4)


@pytest.fixture
def blas_threads():
    """How many threads BLAS has, as a function; two at first, whatever the machine has."""
    get, set_ = map(blas.openblas, ("get_num_threads", "set_num_threads"))
    if get is None:
        pytest.skip("this NumPy does not bring an OpenBLAS")
    before = get()
    set_(2)
    yield get
    set_(before)


@pytest.fixture
def on_threads(monkeypatch):
    """on_threads(n): as on a machine with n cores."""
    return lambda n: monkeypatch.setattr(threads, "reading_threads", lambda: n)


def test_blas_has_one_thread_until_the_last_of_several_contexts_ends(blas_threads):
    """As when one program reads two texts at once, and one of them is interrupted."""
    with ExitStack() as second:
        with suppress(KeyboardInterrupt), blas.one_blas_thread():
            second.enter_context(blas.one_blas_thread())
            assert threads.reading_threads() == 2, "as many as BLAS has when it is left alone"
            raise KeyboardInterrupt
        assert blas_threads() == 1
    assert blas_threads() == 2


def test_with_more_than_max_threads_cores_one_python_thread_reads(monkeypatch):
    most = threads.MAX_THREADS
    for cores, ours in ((1, 1), (2, 2), (most, most), (most + 1, 1)):
        monkeypatch.setattr(blas, "openblas", lambda _, cores=cores: lambda: cores)
        assert threads.reading_threads() == ours
    monkeypatch.setattr(blas, "openblas", lambda _: None)
    assert threads.reading_threads() == 1


def test_blas_has_one_thread_while_threads_share_a_batch(blas_threads, monkeypatch):
    seen, find = set(), loop.write_gradients
    monkeypatch.setattr(
        loop, "write_gradients", lambda *args: seen.add(blas_threads()) or find(*args)
    )
    for n, left in ((2, 1), (1, 2)):
        seen.clear()
        settings = Settings(steps=2, batch=2, context=8, warm_up=0, threads=n)
        list(Trainer(random_model(), IDS % 7, IDS[:40], settings).run())
        assert (seen, blas_threads()) == ({left}, 2)


@pytest.mark.parametrize(("threads", "B"), [(1, 2), (2, 1), (3, 2), (4, 1)])
def test_threads_change_no_more_than_rounding(threads, B, on_threads):
    on_threads(threads)
    ids = np.stack([IDS, IDS[::-1]])[:B]
    cache, pieces = MODEL.new_cache(B), []
    final = MODEL.final(ids, cache, progress=pieces.append)
    assert_close(final @ MODEL.W_U, MODEL(ids, tape={}))
    assert cache.length == sum(pieces) == T
    assert len(pieces) % threads == 0, "none has more than another"
    assert max(pieces) <= PIECE_TOKENS
    assert max(pieces) - min(pieces) < len(pieces)


def test_pieces_continue_a_cache_that_is_not_empty(on_threads):
    on_threads(2)
    cache = MODEL.new_cache()
    parts = [MODEL(IDS[a:b], cache) for a, b in ((0, 5), (5, T - 3), (T - 3, T))]
    assert_close(np.concatenate(parts), MODEL(IDS, tape={}))


def test_long_sequences_of_unequal_lengths_are_read_in_pieces(on_threads):
    on_threads(2)
    ids, cache = np.stack([IDS, IDS[::-1]]), MODEL.new_cache(2)
    MODEL(ids[:, :9], cache, lengths=[9, 2])
    logits = MODEL(ids[:, 9:], cache, lengths=[T - 9, T - 99])
    assert_close(logits[0], MODEL(IDS, tape={})[9:])
    second = np.concatenate([ids[1, :2], ids[1, 9:-90]])
    assert_close(logits[1, : T - 99], MODEL(second, tape={})[2:])


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_piece_waits_for_the_one_before(slow, on_threads, monkeypatch):
    """Whichever dawdles: all keys that a token may see are there when it looks."""
    on_threads(4)
    extend, dawdled = KVCache.extend, []

    def dawdle(self, layer, k, v):
        if self.length == STARTS[slow]:
            dawdled.append(layer)
            time.sleep(0.05)
        return extend(self, layer, k, v)

    monkeypatch.setattr(KVCache, "extend", dawdle)
    cache = MODEL.new_cache()
    cache.keys[...] = cache.values[...] = np.nan
    assert_close(MODEL(IDS, cache), MODEL(IDS, tape={}))
    assert dawdled == [0, 1, 2]


def test_few_tokens_are_not_shared(on_threads, monkeypatch):
    on_threads(2)
    monkeypatch.setattr(prefill, "thread_map", lambda _: pytest.fail("threads for nothing"))
    MODEL(IDS[: 2 * threads.MIN_TOKENS - 1])
    MODEL(np.tile(IDS[:1], (500, 1)))
    with pytest.raises(pytest.fail.Exception, match="threads for nothing"):
        MODEL(IDS[: 2 * threads.MIN_TOKENS])


def test_threads_use_the_callers_errstate(on_threads):
    on_threads(2)
    parameters = random_model(LONG).parameters
    large = {
        name: array * np.float32(1e30 if "c_fc" in name else 1)
        for name, array in parameters.items()
    }
    gpt2 = GPT2(LONG, large)
    with np.errstate(all="ignore"):
        gpt2(IDS)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        gpt2(IDS)


def test_after_the_main_thread_ended_one_thread_reads():
    """Python cannot start the threads of a pool then."""
    code = f"""if 1:
        import threading, time, numpy, tiedgpt, tiedgpt.inference.evaluation
        config = tiedgpt.Config(7, {T}, 6, 1, 2, bos_token_id=None, eos_token_id=None)
        model = tiedgpt.GPT2.random(config)
        ids = numpy.zeros({T}, int)
        def read():
            threading.main_thread().join()
            print(model(ids).shape, len(tiedgpt.inference.evaluation.token_losses(model, ids, 9)))
        threading.Thread(target=read).start()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"({T}, 7) {T - 1}\n", "")


@pytest.mark.parametrize("fails", [0, 1, 3, "Ctrl-C"])
def test_an_error_in_one_piece_ends_the_others(fails, on_threads, monkeypatch):
    """As does a Ctrl-C when the first of four pieces has been read."""
    on_threads(2)
    gpt2 = random_model(replace(LONG, n_layer=50))
    extend, layers, error = (
        KVCache.extend,
        [],
        KeyboardInterrupt if fails == "Ctrl-C" else MemoryError,
    )

    def fail(*_):
        raise error

    def watched(self, layer, k, v):
        layers.append(layer)
        if layer == 1 and fails != "Ctrl-C" and self.length == STARTS[fails]:
            fail()
        return extend(self, layer, k, v)

    monkeypatch.setattr(KVCache, "extend", watched)
    cache, before = gpt2.new_cache(), threading.active_count()
    with pytest.raises(error):
        gpt2.final(IDS, cache, progress=fail if fails == "Ctrl-C" else None)
    assert cache.length == 0
    assert threading.active_count() == before
    assert len(layers) < 3 * 50 or fails == 3
