"""scripts/benchmark.py: tiedgpt's share of the limits that its rows have."""

import sys

import benchmark  # of scripts/
import numpy as np
import pytest

from tiedgpt import load_model

LIMIT = 10.0  # ms, of whatever is measured


@pytest.fixture
def library(checkpoint, tmp_path, monkeypatch) -> benchmark.TiedGPT:
    """tiedgpt with a small model, where each measured function runs and takes LIMIT."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(benchmark, "READ", 2**12)
    monkeypatch.setattr(benchmark, "milliseconds", lambda function: (function(), LIMIT)[1])
    return benchmark.TiedGPT(checkpoint, str(tmp_path))


def test_the_limit_of_a_step_is_the_time_to_read_each_weight_once(library, checkpoint):
    """All parameters are read, the tied matrix once, but for the table of positions."""
    config = load_model(checkpoint).config
    numbers = sum(array.size for array in library.model.parameters.values())
    read = 4 * (numbers - config.n_ctx * config.n_embd)
    assert library.limit_of_step() == pytest.approx(LIMIT * read / 2**12)


def test_the_limit_of_a_prompt_has_the_products_with_all_matrices(library, monkeypatch):
    """Each matrix of a layer once, and the output matrix for one token."""
    shapes = []

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, **settings):
            shapes.append([array.shape for array in inputs])
            return ufunc(*[np.asarray(array) for array in inputs])

    model = library.model
    D = model.config.n_embd
    for name, array in model.parameters.items():
        model.parameters[name] = array.view(Watched)
    assert library.limit_of_prompt([1, 2, 3]) == LIMIT
    of_one_run = shapes[: len(shapes) // 2]  # the first run is a warm-up
    matrices = [a.shape for n, a in model.parameters.items() if n.startswith("h.") and a.ndim == 2]
    expected = [[(3, rows), (rows, columns)] for rows, columns in matrices]
    assert of_one_run == [*expected, [(1, D), (D, model.config.vocab_size)]]


def test_a_row_has_its_share_of_the_limit_if_it_has_a_limit():
    row = benchmark.Row("token, ms", benchmark.measure, ())
    row.figures = {"tiedgpt": [20.0, 30.0, 40.0], "transformers": [60.0], "limit": [15.0]}
    line = benchmark.terminal_line(row, ["tiedgpt", "transformers"])
    assert line.split()[2:] == ["30.0", "50%", "60.0", "(0.50)"]
    assert "| token, ms | 30.0 | 60.0 | 50% |" in benchmark.markdown_table(
        "here", [row], ["tiedgpt", "transformers"]
    )
    row.figures.pop("limit")
    line = benchmark.terminal_line(row, ["tiedgpt", "transformers"])
    assert line.split()[2:] == ["30.0", "60.0", "(0.50)"]


def test_the_table_with_no_other_library(run_script, checkpoint, monkeypatch):
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(variable, "")  # main sets them: the test restores them
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(benchmark, "LIBRARIES", {"tiedgpt": benchmark.TiedGPT})
    monkeypatch.setattr(benchmark, "run_rounds", lambda rows, libraries, rounds: [])
    code, out, _ = run_script(benchmark, "--model", checkpoint, "--threads", "1")
    assert code == 0
    assert "tiedgpt\ntoken, ms" in out
