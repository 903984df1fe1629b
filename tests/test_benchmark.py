"""benchmark.py, benchmark_sides.py, make_goldens.py, train_shakespeare.py: what they report; their
errors."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import benchmark  # of scripts/
import benchmark_products
import benchmark_sides
import numpy as np
import pytest

import tiedgpt

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
RUN = "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
WITHOUT_TORCH = [
    "-c",
    f"import sys, runpy; sys.modules['torch'] = None; {RUN}",
    SCRIPTS / "make_goldens.py",
]


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    """A model whose greedy text does not repeat one token."""
    config = tiedgpt.Config(
        vocab_size=97,
        n_ctx=128,
        n_layer=2,
        n_head=2,
        n_embd=32,
        initializer_range=0.4,
        eos_token_id=None,
    )
    path = tmp_path_factory.mktemp("benchmark") / "model"
    tiedgpt.save_model(tiedgpt.GPT2.random(config), None, path)
    return str(path)


def test_profile_names_functions_that_exist_and_counts_no_time_twice(checkpoint, monkeypatch):
    side = benchmark_sides.TiedGPT(checkpoint)
    monkeypatch.setattr(benchmark_sides.time, "perf_counter", itertools.count().__next__)
    for arguments in (("prompt", list(range(90))), ("decode", [1, 2, 3], 8)):
        parts = side.profile(*arguments)
        assert parts.keys() == set(benchmark_sides.PROFILED.values())
        assert min(parts.values()) > 0
        assert sum(parts.values()) == pytest.approx(100)
    # A call takes one tick, and one more for the start and the end of each call inside it.
    unit = parts["softmax"]
    assert parts["products by weights"] == pytest.approx(4 * unit)  # four calls
    assert parts["attention's products"] == pytest.approx((7 - 3) * unit)  # three calls inside
    assert parts["activation"] == pytest.approx((5 - 2) * unit)  # two calls inside


def test_products_are_compared_for_all_matrices_of_the_blocks(checkpoint):
    model = tiedgpt.load_model(checkpoint)
    shapes = [weight.shape for weight in benchmark_products.block_weights(model)]
    assert shapes == 2 * [(32, 96), (32, 32), (32, 128), (128, 32)]


def test_the_time_of_a_product_is_divided_by_that_of_the_plain_one(monkeypatch):
    weight = np.ones((3, 5))
    # Each comparison reads the clock four times: 2 s for `product`, 4 s for `rows @ weight`.
    clock = itertools.accumulate(itertools.cycle([1, 2, 1, 4]))
    monkeypatch.setattr(benchmark_products, "perf_counter", lambda: next(clock))
    assert benchmark_products.compare([weight], R=2, turns=3) == (2000, 0.5)


def test_profile_refuses_a_function_that_is_gone(checkpoint, monkeypatch):
    monkeypatch.setitem(benchmark_sides.PROFILED, "convolution", "convolutions")
    with pytest.raises(LookupError, match="'convolution'"):
        benchmark_sides.TiedGPT(checkpoint).profile("prompt", [1, 2])


def test_plain_torch_decodes_the_same_tokens(checkpoint):
    pytest.importorskip("torch")
    ours, theirs = benchmark_sides.TiedGPT(checkpoint), benchmark_sides.PyTorch(checkpoint)
    tokens = ours.decode([1, 2, 3, 4], 40)[1]
    assert len(set(tokens)) > 5
    assert theirs.decode([1, 2, 3, 4], 40)[1] == tokens
    assert theirs.decode_untied([1, 2, 3, 4], 40)[1] == tokens
    assert (
        theirs.decode_batch([1, 2, 3, 4], 40, 3)[1]
        == ours.decode_batch([1, 2, 3, 4], 40, 3)[1]
        == tokens
    )


def test_a_library_that_fails_has_no_figure_and_a_note():
    def fail() -> float:
        raise benchmark.Failure("out of memory")

    notes: list[str] = []
    row = benchmark.Row("decode", "ms", {"tiedgpt": lambda: 1.0, "other": fail})
    benchmark.measure([row], 2, notes)
    assert row.runs == {"tiedgpt": [1.0, 1.0]}
    assert notes == ["other failed at 'decode': out of memory"]
    with pytest.raises(benchmark.Failure, match="out of memory"):
        benchmark.measure([benchmark.Row("decode", "ms", {"tiedgpt": fail})], 2, notes)


def test_a_worker_reports_exceptions_and_its_own_end():
    worker = benchmark.Worker(dict, {"a": 1})
    assert worker.call("get", "a") == 1
    with pytest.raises(benchmark.Failure, match="KeyError: 'b'"):
        worker.call("pop", "b")
    worker._process.terminate()
    with pytest.raises(benchmark.Failure, match="its process ended"):
        worker.call("get", "a")


def test_ratios_are_computed_in_each_round():
    one, many = benchmark.Row("1", "ms"), benchmark.Row("8", "ms")
    one.runs = {"tiedgpt": [1.0, 2.0, 4.0], "other": [1.0, 1.0, 1.0]}
    many.runs = {"tiedgpt": [4.0, 2.0, 8.0], "third": [1.0, 1.0, 1.0]}
    multiple, share = benchmark.multiple(many, one), benchmark.share("limit", many, 4e4, one)
    for row in (multiple, share):
        row.derive()
    assert multiple.runs == {"tiedgpt": [4.0, 1.0, 2.0]}
    assert share.runs == {"tiedgpt": [1.0, 1.0, 0.125], "third": [4.0, 2.0, 1.0]}
    assert (one.figure("tiedgpt"), one.ratio("other"), many.figure("other")) == (2.0, 2.0, None)


def test_markdown_replaces_the_readme_table():
    rows = [benchmark.Row("decode", "ms/token"), benchmark.Row("  share", "%")]
    rows[0].runs = {"tiedgpt": [1234.0], "other": [12.34]}
    rows[1].runs = {"tiedgpt": [9.876]}
    new = benchmark.markdown("a machine", ["a note"], rows, ["tiedgpt", "other"])
    assert new.splitlines() == [
        "a machine.",
        "",
        "| | tiedgpt | other |",
        "|---|---|---|",
        "| decode, ms/token | 1,234 | 12.3 |",
        "| *share*, % | 9.88 |  |",
        "",
        "- a note",
    ]
    readme = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    assert benchmark.marked_file(str(SCRIPTS / "README.md"))
    once = benchmark.replace_between_markers(readme, new)
    assert benchmark.replace_between_markers(once, new) == once
    before, after = readme.split(benchmark.BEGIN)[0], readme.split(benchmark.END)[1]
    assert once == f"{before}{benchmark.BEGIN}\n{new}\n{benchmark.END}{after}"


FLAGS = [
    ("--repeats", "0"),
    ("--threads", "two"),
    ("--json", "no/such/file"),
    ("--markdown", "no-such-file"),
    ("--markdown", str(ROOT / "LICENSE")),
]


@pytest.mark.parametrize(("flag", "value"), FLAGS)
def test_a_flag_is_refused_in_one_line(monkeypatch, capsys, flag, value):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", flag, value])
    monkeypatch.setattr(sys, "path", [*sys.path])  # which main changes
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"benchmark.py: error: argument {flag}: ")
    assert repr(value) in err
    assert "LICENSE" not in value or benchmark.BEGIN in err


REFUSED = [
    ([SCRIPTS / "benchmark.py", "--model", "no-such"], ["benchmark.py: error: ", "no-such"]),
    ([*WITHOUT_TORCH, "nowhere"], ["make_goldens.py: error: ", "torch", "pip install"]),
    (
        [SCRIPTS / "train_shakespeare.py", "no", "x"],
        ["train_shakespeare.py: error: no: No such file"],
    ),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED)
def test_a_script_refuses_in_one_line(arguments, parts):
    done = python(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert [part for part in parts if part not in done.stderr] == []


def test_benchmark_refuses_other_arithmetic_and_a_short_context(tmp_path):
    sizes = {"vocab_size": 50, "n_layer": 1, "n_head": 1, "n_embd": 4, "eos_token_id": None}
    for change, part in (({"activation_function": "relu"}, "relu"), ({"n_ctx": 64}, "64")):
        config = tiedgpt.Config(**sizes, **change)
        with pytest.raises(benchmark.Failure, match=part):
            benchmark.check_config(vars(config))
    benchmark.check_config(vars(tiedgpt.Config(**sizes)))


def test_help_without_torch():
    done = python(*WITHOUT_TORCH, "-h")
    assert (done.returncode, done.stderr, done.stdout[:6]) == (0, "", "usage:")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send SIGINT to one process")
@pytest.mark.parametrize(
    ("script", "arguments", "before"),
    [
        ("benchmark.py", [], b""),
        ("make_goldens.py", ["goldens"], b""),
        (
            "train_shakespeare.py",
            [ROOT / "weights" / "sonnets.txt", "."],
            b"\n",
        ),  # after the progress bar
    ],
)
def test_ctrl_c_is_one_line(script, arguments, before, tmp_path):
    if script == "make_goldens.py":
        pytest.importorskip("transformers")
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(Path(tiedgpt.__file__).parents[1]),
    }
    command = [sys.executable, SCRIPTS / script, *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as process:
        while before and process.stderr.read(1) not in (
            b"t",
            b"",
        ):  # until "tied:", the progress bar's name
            pass
        # tempfile tries the directory with a file of its own first, so wait for a file in a
        # directory
        while not before and not list(tmp_path.glob("*/*")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    says = f"{script}: interrupted\n".encode()
    assert process.returncode == 130
    assert errors.endswith(before + says) if before else errors == says
    assert b"Traceback" not in errors
    if script == "benchmark.py":
        assert not list(tmp_path.iterdir())  # the temporary directory is gone
