"""Refusals and Ctrl-C of make_goldens.py and train_shakespeare.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import train_shakespeare  # of scripts/

import tiedgpt

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
# Arguments of Python that run make_goldens.py as if torch were not installed. None in sys.modules
# makes the import of a module fail.
MAKE_GOLDENS_WITHOUT_TORCH = [
    "-c",
    "import runpy, sys; sys.modules['torch'] = None; "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')",
    SCRIPTS / "make_goldens.py",
]


def run_python(*arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a process."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_make_goldens_without_torch_says_so_in_one_line():
    code, out, err = run_python(*MAKE_GOLDENS_WITHOUT_TORCH, "nowhere")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in ("make_goldens.py: error: ", "torch", "pip install"):
        assert part in err


NO_TEXT = (2, "", "train_shakespeare.py: error: no: no such file; expected a text in UTF-8\n")


def test_train_shakespeare_without_its_text_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_shakespeare.py", "no", "x"])
    monkeypatch.setattr(train_shakespeare, "on_ctrl_c", lambda handler: None)
    code = train_shakespeare.main()
    assert (code, *capsys.readouterr()) == NO_TEXT


@pytest.mark.slow
def test_train_shakespeare_runs_as_a_script():
    assert run_python(SCRIPTS / "train_shakespeare.py", "no", "x") == NO_TEXT


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
