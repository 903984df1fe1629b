"""benchmark.py runs; refusals and Ctrl-C of make_goldens.py and train_shakespeare.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import benchmark  # of scripts/
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


def test_the_benchmark_measures_tiedgpt_alone_and_replaces_the_table(tmp_path, monkeypatch, capsys):
    """A small model has no room for the longer prompts. A small training is measured as well."""
    config = tiedgpt.Config(
        vocab_size=50, n_ctx=96, n_layer=1, n_head=1, n_embd=8, bos_token_id=None, eos_token_id=None
    )
    tiedgpt.save_model(tiedgpt.GPT2.random(config), None, tmp_path / "model")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{benchmark.BEGIN}\nold\n{benchmark.END}\nafter\n")
    tiny = benchmark.Training("tiny", 2, 8, 1, 1, 8, vocab_size=50, n_ctx=8)
    monkeypatch.setattr(benchmark, "TRAININGS", [tiny])
    monkeypatch.setattr(benchmark, "LIBRARIES", {"tiedgpt": benchmark.TiedGPT})
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(variable, "1")  # the script sets them; monkeypatch restores them
    arguments = ["--model", str(tmp_path / "model"), "--rounds", "2", "--markdown", str(readme)]
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])  # a copy, because main changes it
    benchmark.main()
    names = ["token, ms", "step of 8 texts, ms", "prompt of 16 tokens, ms"]
    names += ["prompt of 64 tokens, ms", "load, s", "peak memory, MB", "training step, tiny, ms"]
    printed = capsys.readouterr().out
    before, *lines, after = readme.read_text().splitlines()
    assert (before, after) == ("before", "after")
    table = dict(line.strip("| ").split(" | ") for line in lines if ", " in line and "|" in line)
    assert list(table) == names
    for name, figure in table.items():
        assert float(figure.replace(",", "")) >= 0
        assert name in printed


def run_python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
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
