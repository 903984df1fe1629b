"""What benchmark.py measures and prints; refusals and Ctrl-C of three scripts.

benchmark.py compares tiedgpt with other libraries. A side is a library that is measured. A row of
its table is one measurement, which is repeated in several rounds: row.runs has the results of each
side, one for each round. The figure of a side is the median of its results. The other two scripts
are make_goldens.py and train_shakespeare.py.
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
# Arguments of Python that run make_goldens.py as if torch were not installed. None in sys.modules
# makes the import of a module fail.
MAKE_GOLDENS_WITHOUT_TORCH = [
    "-c",
    "import runpy, sys; sys.modules['torch'] = None; "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')",
    SCRIPTS / "make_goldens.py",
]


def run_python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    """The path of a model whose parameters are so large that greedy text has different tokens."""
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
def side_with_a_counting_clock(checkpoint, monkeypatch):
    """tiedgpt as a side. Its clock shows 0, 1, 2, ... seconds, one more each time it is read."""
    monkeypatch.setattr(benchmark_sides.time, "perf_counter", itertools.count().__next__)
    return benchmark_sides.TiedGPT(checkpoint)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(["prompt", list(range(90))], id="prompt"),
        pytest.param(["decode", [1, 2, 3], 8], id="decode"),
    ],
)
def test_a_profile_has_the_share_of_each_part_in_percent(side_with_a_counting_clock, call):
    parts = side_with_a_counting_clock.profile(*call)
    assert parts.keys() == set(benchmark_sides.PROFILED.values())
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(100)


def test_a_profile_counts_no_time_twice(side_with_a_counting_clock):
    """The time of a function does not contain that of other profiled functions which it calls.

    Each profiled function reads the clock when it begins and when it ends. So a call takes 1 s by
    this clock, and 2 s more for each profiled call in it, which reads the clock twice.
    """
    parts = side_with_a_counting_clock.profile("decode", [1, 2, 3], 8)
    # A block calls softmax once, for 1 s, and multiplies by weights four times, for 1 s each.
    second = parts["softmax"]  # in percent
    assert parts["products by weights"] == pytest.approx(4 * second)
    # Attention calls softmax once and multiplies by weights twice. So it lasts 1 + 3 * 2 = 7 s, and
    # the three calls take 3 s of them.
    assert parts["attention's products"] == pytest.approx((7 - 3) * second)
    # The MLP multiplies by weights twice. So it lasts 1 + 2 * 2 = 5 s, and the products take 2 s of
    # them.
    assert parts["activation"] == pytest.approx((5 - 2) * second)


def test_the_first_layers_draft_in_the_row_of_this_name(checkpoint, monkeypatch):
    side = benchmark_sides.TiedGPT(checkpoint)
    sources = []
    monkeypatch.setattr(side, "decode_drafted", lambda ids, n, source: sources.append(source))
    side.decode_layers([1, 2, 3], 8)
    assert sources == [side.first_layers]


def test_block_weights_are_all_matrices_of_all_blocks(checkpoint):
    model = tiedgpt.load_model(checkpoint)
    shapes = [weight.shape for weight in benchmark_products.block_weights(model)]
    D = 32
    shapes_of_a_block = [(D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)]
    assert shapes == shapes_of_a_block + shapes_of_a_block, "there are two blocks"


def test_compare_gives_the_milliseconds_of_product_and_their_ratio_to_rows_at_weight(monkeypatch):
    """compare times two functions: `product`, and the plain product `rows @ weight`."""
    weight = np.ones((3, 5))
    # Each turn reads the clock four times: before and after `product`, and before and after
    # `rows @ weight`. By this clock, `product` takes 2 s and `rows @ weight` takes 4 s.
    seconds_between_readings = itertools.cycle([1, 2, 1, 4])
    clock = itertools.accumulate(seconds_between_readings)
    monkeypatch.setattr(benchmark_products, "perf_counter", lambda: next(clock))
    milliseconds_of_product, ratio = benchmark_products.compare([weight], R=2, turns=3)
    assert milliseconds_of_product == 2000
    assert ratio == 2 / 4


def test_profile_refuses_the_name_of_a_function_that_does_not_exist(checkpoint, monkeypatch):
    monkeypatch.setitem(benchmark_sides.PROFILED, "convolution", "convolutions")
    with pytest.raises(LookupError, match="'convolution'"):
        benchmark_sides.TiedGPT(checkpoint).profile("prompt", [1, 2])


def test_plain_torch_decodes_the_same_tokens_as_tiedgpt(checkpoint):
    pytest.importorskip("torch")
    ours = benchmark_sides.TiedGPT(checkpoint)
    theirs = benchmark_sides.PyTorch(checkpoint)
    prompt = [1, 2, 3, 4]
    n_new = 40
    _time, tokens = ours.decode(prompt, n_new)
    assert len(set(tokens)) > 5, "wrong decoding could repeat one token, too"
    decodings = [
        theirs.decode(prompt, n_new),
        theirs.decode_untied(prompt, n_new),
        theirs.decode_batch(prompt, n_new, batch=3),
        ours.decode_batch(prompt, n_new, batch=3),
    ]
    for _time, decoded_tokens in decodings:
        assert decoded_tokens == tokens


def raise_failure() -> float:
    """A measurement that fails."""
    raise benchmark.Failure("out of memory")


def test_a_library_that_fails_has_no_results_and_a_note():
    notes: list[str] = []
    row = benchmark.Row("decode", "ms", {"tiedgpt": lambda: 1.0, "other": raise_failure})
    benchmark.measure([row], repeats=2, notes=notes)
    assert row.runs == {"tiedgpt": [1.0, 1.0]}
    assert notes == ["other failed at 'decode': out of memory"]


def test_a_failure_of_tiedgpt_ends_the_benchmark():
    row = benchmark.Row("decode", "ms", {"tiedgpt": raise_failure})
    with pytest.raises(benchmark.Failure, match="out of memory"):
        benchmark.measure([row], repeats=2, notes=[])


def test_a_worker_reports_exceptions_and_that_its_process_has_ended():
    worker = benchmark.Worker(dict, {"a": 1})  # it calls methods of this dict in a process
    assert worker.call("get", "a") == 1
    with pytest.raises(benchmark.Failure, match="KeyError: 'b'"):
        worker.call("pop", "b")
    worker._process.terminate()
    with pytest.raises(benchmark.Failure, match="its process ended"):
        worker.call("get", "a")


@pytest.fixture
def one_text() -> benchmark.Row:
    """The milliseconds for one text in three rounds. The side `third` was not measured."""
    row = benchmark.Row("1", "ms")
    row.runs = {"tiedgpt": [1.0, 2.0, 4.0], "other": [1.0, 1.0, 1.0]}
    return row


@pytest.fixture
def eight_texts() -> benchmark.Row:
    """The milliseconds for eight texts in three rounds. The side `other` was not measured."""
    row = benchmark.Row("8", "ms")
    row.runs = {"tiedgpt": [4.0, 2.0, 8.0], "third": [1.0, 1.0, 1.0]}
    return row


def test_a_figure_is_the_median_of_the_rounds(one_text):
    """tiedgpt took 1, 2 and 4 ms. `other` took 1 ms in each round. `third` was not measured."""
    assert one_text.figure("tiedgpt") == 2.0
    assert one_text.ratio("other") == 2.0 / 1.0
    assert one_text.figure("third") is None


def test_a_multiple_is_computed_in_each_round_for_the_sides_in_both_rows(one_text, eight_texts):
    """tiedgpt took 4, 2 and 8 ms for eight texts, and 1, 2 and 4 ms for one text.

    The other sides were measured in one of the two rows only.
    """
    row = benchmark.multiple(eight_texts, one_text)
    row.derive()
    assert row.runs == {"tiedgpt": [4 / 1, 2 / 2, 8 / 4]}


def test_a_share_divides_by_the_highest_limit_of_each_round(one_text, eight_texts):
    """The share in percent is work / (milliseconds * limit) / 1e4.

    The limit of a round is the highest result of any side. Here the results of `one_text` serve as
    limits. In the three rounds, tiedgpt has the highest: 1, 2 and 4. The work is 4e4, so that the
    share is 4 / (milliseconds * limit).
    """
    row = benchmark.share("limit", eight_texts, work=4e4, limit=one_text)
    row.derive()
    assert row.runs == {
        "tiedgpt": [4 / (4 * 1), 4 / (2 * 2), 4 / (8 * 4)],
        "third": [4 / (1 * 1), 4 / (1 * 2), 4 / (1 * 4)],
    }


def test_the_markdown_table_has_figures_of_three_digits_and_a_name_in_italics_if_it_is_indented():
    decode = benchmark.Row("decode", "ms/token")
    decode.runs = {"tiedgpt": [1234.0], "other": [12.34]}
    share = benchmark.Row("  share", "%")  # an indented name
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


def test_the_table_in_the_readme_is_replaced_between_its_markers():
    path = SCRIPTS / "README.md"
    assert benchmark.marked_file(str(path)) == path, "the file has both markers"
    readme = path.read_text(encoding="utf-8")
    before, _ = readme.split(benchmark.BEGIN)
    _, after = readme.split(benchmark.END)
    text = benchmark.replace_between_markers(readme, "a table")
    assert text == f"{before}{benchmark.BEGIN}\na table\n{benchmark.END}{after}"
    assert benchmark.replace_between_markers(text, "a table") == text, "a second time"


def refusal(monkeypatch, capsys, *arguments: str) -> str:
    """Run benchmark.py with arguments that it must refuse. Returns the one line on stderr."""
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])  # a copy, because main changes it
    with pytest.raises(SystemExit, match="2"):  # the exit code
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
def test_a_wrong_value_is_refused_in_one_line_that_names_flag_and_value(
    monkeypatch, capsys, flag, value
):
    line = refusal(monkeypatch, capsys, flag, value)
    assert line.startswith(f"benchmark.py: error: argument {flag}: ")
    assert repr(value) in line


def test_a_file_without_markers_for_the_table_is_refused(monkeypatch, capsys):
    file = str(ROOT / "LICENSE")  # a file without markers
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
def test_a_script_that_cannot_start_says_why_in_one_line(arguments, parts):
    """`parts` are texts that the line must contain."""
    done = run_python(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


BENCHMARK_CONFIG = tiedgpt.Config(vocab_size=50, n_layer=1, n_head=1, n_embd=4, eos_token_id=None)


def test_the_benchmark_accepts_a_model_with_gpt2s_activation_function_and_context():
    benchmark.check_config(vars(BENCHMARK_CONFIG))  # it would raise Failure


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"activation_function": "relu"}, "relu", id="relu"),
        pytest.param({"n_ctx": 64}, "64", id="short-context"),
    ],
)
def test_the_benchmark_refuses_another_activation_function_and_a_short_context(change, message):
    config = replace(BENCHMARK_CONFIG, **change)
    with pytest.raises(benchmark.Failure, match=message):
        benchmark.check_config(vars(config))


def test_make_goldens_prints_its_help_without_torch():
    done = run_python(*MAKE_GOLDENS_WITHOUT_TORCH, "-h")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("usage:")


# Ctrl-C


def start(script: str, *arguments: object, directory: Path) -> subprocess.Popen[bytes]:
    """Start a script. Its working directory is also its directory for temporary files."""
    root = str(Path(tiedgpt.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, SCRIPTS / script, *map(str, arguments)],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(directory), "PYTHONPATH": root},
        cwd=directory,
    )


def interrupt(process: subprocess.Popen[bytes]) -> bytes:
    """Send a script the signal of Ctrl-C. Returns what it prints on stderr from then on."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130  # 128 + SIGINT
    assert b"Traceback" not in err
    return err


def wait_for_temporary_file(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until the script has written a file in a temporary directory of its own in `directory`.

    A file in `directory` itself does not count: with it, tempfile tries whether it can write there.
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
def test_ctrl_c_ends_train_shakespeare_with_a_line_below_its_progress_bar(tmp_path):
    text = ROOT / "weights" / "sonnets.txt"
    with start("train_shakespeare.py", text, ".", directory=tmp_path) as process:
        # Wait until the progress bar is shown, which begins with "tied:".
        letter = process.stderr.read(1)
        while letter not in (b"t", b""):  # b"" if the script has ended
            letter = process.stderr.read(1)
        assert interrupt(process).endswith(b"\ntrain_shakespeare.py: interrupted\n")
