"""What benchmark.py reports; errors of the scripts benchmark, make_goldens, train_shakespeare.

A row of the benchmark's table is one measurement, and a side is a library that is measured. `runs`
has the result of each round for each side. The figure of a side is the median of its results.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import benchmark  # of scripts/
import benchmark_products
import benchmark_sides
import numpy as np
import pytest

import tiedgpt

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
# make_goldens.py as if torch were not installed
MAKE_GOLDENS_WITHOUT_TORCH = [
    "-c",
    "import runpy, sys; sys.modules['torch'] = None; "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')",
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


@pytest.fixture
def side_with_a_clock(checkpoint, monkeypatch):
    """The library, on a clock that is one second later each time that it is read."""
    monkeypatch.setattr(benchmark_sides.time, "perf_counter", itertools.count().__next__)
    return benchmark_sides.TiedGPT(checkpoint)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(["prompt", list(range(90))], id="prompt"),
        pytest.param(["decode", [1, 2, 3], 8], id="decode"),
    ],
)
def test_a_profile_has_each_part_in_percent(side_with_a_clock, call):
    parts = side_with_a_clock.profile(*call)
    assert parts.keys() == set(benchmark_sides.PROFILED.values())
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(100)


def test_a_profile_counts_no_time_twice(side_with_a_clock):
    """Each call reads the clock when it begins and when it ends.

    So a call takes one second, and two more for each timed call in it.
    """
    parts = side_with_a_clock.profile("decode", [1, 2, 3], 8)
    # A block has one softmax, which takes 1 s, and four products by weights, of 1 s each.
    second = parts["softmax"]
    assert parts["products by weights"] == pytest.approx(4 * second)
    # Attention calls three of them. It lasts 7 s, of which they take 3 s.
    assert parts["attention's products"] == pytest.approx((7 - 3) * second)
    # The MLP calls two of them. It lasts 5 s, of which they take 2 s.
    assert parts["activation"] == pytest.approx((5 - 2) * second)


def test_products_are_compared_for_all_matrices_of_the_blocks(checkpoint):
    model = tiedgpt.load_model(checkpoint)
    shapes = [weight.shape for weight in benchmark_products.block_weights(model)]
    D = 32
    shapes_of_a_block = [(D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)]
    assert shapes == shapes_of_a_block + shapes_of_a_block, "there are two blocks"


def test_the_time_of_a_product_is_divided_by_that_of_the_plain_one(monkeypatch):
    """The time is in milliseconds."""
    weight = np.ones((3, 5))
    # Each turn reads the clock before and after `product`, which takes 2 s, and before and after
    # `rows @ weight`, which takes 4 s.
    seconds_between_readings = itertools.cycle([1, 2, 1, 4])
    clock = itertools.accumulate(seconds_between_readings)
    monkeypatch.setattr(benchmark_products, "perf_counter", lambda: next(clock))
    time_of_product, ratio = benchmark_products.compare([weight], R=2, turns=3)
    assert time_of_product == 2000
    assert ratio == 2 / 4


def test_profile_refuses_a_function_that_is_gone(checkpoint, monkeypatch):
    monkeypatch.setitem(benchmark_sides.PROFILED, "convolution", "convolutions")
    with pytest.raises(LookupError, match="'convolution'"):
        benchmark_sides.TiedGPT(checkpoint).profile("prompt", [1, 2])


def test_plain_torch_decodes_the_same_tokens(checkpoint):
    pytest.importorskip("torch")
    ours = benchmark_sides.TiedGPT(checkpoint)
    theirs = benchmark_sides.PyTorch(checkpoint)
    prompt = [1, 2, 3, 4]
    _time, tokens = ours.decode(prompt, 40)
    assert len(set(tokens)) > 5, "a text of one token shows nothing"
    decodings = [
        theirs.decode(prompt, 40),
        theirs.decode_untied(prompt, 40),
        theirs.decode_batch(prompt, 40, batch=3),
        ours.decode_batch(prompt, 40, batch=3),
    ]
    for _time, other_tokens in decodings:
        assert other_tokens == tokens


def fail() -> float:
    raise benchmark.Failure("out of memory")


def test_another_library_that_fails_has_no_figure_and_a_note():
    notes: list[str] = []
    row = benchmark.Row("decode", "ms", {"tiedgpt": lambda: 1.0, "other": fail})
    benchmark.measure([row], 2, notes)
    assert row.runs == {"tiedgpt": [1.0, 1.0]}
    assert notes == ["other failed at 'decode': out of memory"]


def test_a_failure_of_tiedgpt_ends_the_benchmark():
    row = benchmark.Row("decode", "ms", {"tiedgpt": fail})
    with pytest.raises(benchmark.Failure, match="out of memory"):
        benchmark.measure([row], repeats=2, notes=[])


def test_a_worker_reports_exceptions_and_its_own_end():
    worker = benchmark.Worker(dict, {"a": 1})
    assert worker.call("get", "a") == 1
    with pytest.raises(benchmark.Failure, match="KeyError: 'b'"):
        worker.call("pop", "b")
    worker._process.terminate()
    with pytest.raises(benchmark.Failure, match="its process ended"):
        worker.call("get", "a")


@pytest.fixture
def one_text() -> benchmark.Row:
    """What one text takes, in three rounds."""
    row = benchmark.Row("1", "ms")
    row.runs = {"tiedgpt": [1.0, 2.0, 4.0], "other": [1.0, 1.0, 1.0]}
    return row


@pytest.fixture
def eight_texts() -> benchmark.Row:
    row = benchmark.Row("8", "ms")
    row.runs = {"tiedgpt": [4.0, 2.0, 8.0], "third": [1.0, 1.0, 1.0]}
    return row


def test_a_figure_is_the_median_of_the_rounds(one_text):
    """tiedgpt took 1, 2 and 4 ms, the other library 1 ms, and the third one was not measured."""
    assert one_text.figure("tiedgpt") == 2.0
    assert one_text.ratio("other") == 2.0
    assert one_text.figure("third") is None


def test_a_multiple_is_computed_in_each_round_for_who_has_both_rows(one_text, eight_texts):
    """Eight texts took 4, 2 and 8 ms, and one text 1, 2 and 4 ms."""
    row = benchmark.multiple(eight_texts, one_text)
    row.derive()
    assert row.runs == {"tiedgpt": [4 / 1, 2 / 2, 8 / 4]}


def test_a_share_of_tiedgpts_limit_is_computed_in_each_round(one_text, eight_texts):
    """The share is work / (ms * the highest limit of the round) / 1e4.

    Here, `one_text` stands for the limits. The highest ones of the three rounds are 1, 2 and 4, all
    of tiedgpt. So with a work of 4e4, the share is 4 / (ms * limit).
    """
    row = benchmark.share("limit", eight_texts, work=4e4, limit=one_text)
    row.derive()
    assert row.runs == {
        "tiedgpt": [4 / (4 * 1), 4 / (2 * 2), 4 / (8 * 4)],
        "third": [4 / (1 * 1), 4 / (1 * 2), 4 / (1 * 4)],
    }


def test_the_table_in_markdown():
    decode = benchmark.Row("decode", "ms/token")
    decode.runs = {"tiedgpt": [1234.0], "other": [12.34]}
    share = benchmark.Row("  share", "%")
    share.runs = {"tiedgpt": [9.876]}
    table = benchmark.markdown("a machine", ["a note"], [decode, share], ["tiedgpt", "other"])
    assert table.splitlines() == [
        "a machine.",
        "",
        "| | tiedgpt | other |",
        "|---|---|---|",
        "| decode, ms/token | 1,234 | 12.3 |",
        "| *share*, % | 9.88 |  |",
        "",
        "- a note",
    ]


def test_the_table_of_the_readme_is_replaced():
    path = SCRIPTS / "README.md"
    assert benchmark.marked_file(str(path)) == path
    readme = path.read_text(encoding="utf-8")
    before, _ = readme.split(benchmark.BEGIN)
    _, after = readme.split(benchmark.END)
    text = benchmark.replace_between_markers(readme, "a table")
    assert text == f"{before}{benchmark.BEGIN}\na table\n{benchmark.END}{after}"
    assert benchmark.replace_between_markers(text, "a table") == text


def refusal(monkeypatch, capsys, *arguments: str) -> str:
    """The one line with which benchmark.py refuses its arguments."""
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])  # which main changes
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        pytest.param("--repeats", "0", id="repeats"),
        pytest.param("--threads", "two", id="threads"),
        pytest.param("--json", "no/such/file", id="json"),
        pytest.param("--markdown", "no-such-file", id="markdown"),
    ],
)
def test_a_flag_is_refused_in_one_line(monkeypatch, capsys, flag, value):
    line = refusal(monkeypatch, capsys, flag, value)
    assert line.startswith(f"benchmark.py: error: argument {flag}: ")
    assert repr(value) in line


def test_a_file_without_markers_for_the_table_is_refused(monkeypatch, capsys):
    file = str(ROOT / "LICENSE")
    line = refusal(monkeypatch, capsys, "--markdown", file)
    assert line.startswith("benchmark.py: error: argument --markdown: ")
    assert repr(file) in line
    assert benchmark.BEGIN in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        pytest.param(
            [SCRIPTS / "benchmark.py", "--model", "no-such"],
            ["benchmark.py: error: ", "no-such"],
            id="benchmark",
        ),
        pytest.param(
            [*MAKE_GOLDENS_WITHOUT_TORCH, "nowhere"],
            ["make_goldens.py: error: ", "torch", "pip install"],
            id="make_goldens",
        ),
        pytest.param(
            [SCRIPTS / "train_shakespeare.py", "no", "x"],
            ["train_shakespeare.py: error: no: No such file"],
            id="train_shakespeare",
        ),
    ],
)
def test_a_script_refuses_in_one_line(arguments, parts):
    done = python(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


BENCHMARK_CONFIG = tiedgpt.Config(vocab_size=50, n_layer=1, n_head=1, n_embd=4, eos_token_id=None)


def test_the_benchmark_takes_models_with_the_arithmetic_of_gpt2():
    benchmark.check_config(vars(BENCHMARK_CONFIG))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"activation_function": "relu"}, "relu", id="relu"),
        pytest.param({"n_ctx": 64}, "64", id="short-context"),
    ],
)
def test_the_benchmark_refuses_other_arithmetic_and_a_short_context(change, message):
    config = replace(BENCHMARK_CONFIG, **change)
    with pytest.raises(benchmark.Failure, match=message):
        benchmark.check_config(vars(config))


def test_help_without_torch():
    done = python(*MAKE_GOLDENS_WITHOUT_TORCH, "-h")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("usage:")


# Ctrl-C


def start(script: str, *arguments: object, directory: Path) -> subprocess.Popen[bytes]:
    """Start a script in a directory that is also the one for temporary files."""
    root = str(Path(tiedgpt.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, SCRIPTS / script, *map(str, arguments)],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(directory), "PYTHONPATH": root},
        cwd=directory,
    )


def interrupt(process: subprocess.Popen[bytes]) -> bytes:
    """What a script prints on stderr after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    return err


def wait_for_temporary_file(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until there is a file in a temporary directory.

    A file beside that may come first: tempfile tries whether it can write there.
    """
    while process.poll() is None and not list(directory.glob("*/*")):
        time.sleep(0.01)


sends_sigint = pytest.mark.skipif(
    os.name == "nt", reason="Windows cannot send SIGINT to one process"
)


@pytest.mark.slow
@sends_sigint
def test_ctrl_c_ends_the_benchmark_and_removes_its_temporary_directory(tmp_path):
    with start("benchmark.py", directory=tmp_path) as process:
        wait_for_temporary_file(process, tmp_path)
        assert interrupt(process) == b"benchmark.py: interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@sends_sigint
def test_ctrl_c_ends_make_goldens(tmp_path):
    pytest.importorskip("transformers")
    with start("make_goldens.py", "goldens", directory=tmp_path) as process:
        wait_for_temporary_file(process, tmp_path)
        assert interrupt(process) == b"make_goldens.py: interrupted\n"


@pytest.mark.slow
@sends_sigint
def test_ctrl_c_ends_train_shakespeare_below_its_progress_bar(tmp_path):
    text = ROOT / "weights" / "sonnets.txt"
    with start("train_shakespeare.py", text, ".", directory=tmp_path) as process:
        # Wait for the first letter of "tied:", with which the bar begins.
        letter = process.stderr.read(1)
        while letter not in (b"t", b""):  # b"" if the script has ended
            letter = process.stderr.read(1)
        assert interrupt(process).endswith(b"\ntrain_shakespeare.py: interrupted\n")
