"""BLAS and the processes of these tests have their usual threads: threads are what is tested."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        yield
