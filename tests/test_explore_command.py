"""The command `tiedgpt explore`, and the files of its page.

The command serves a page at http://127.0.0.1:PORT/SECRET/. A view is a function of VIEWS that
computes the answer to one kind of request of the page. A source is a function of the library whose
code the page shows.
"""

import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import assert_one_error_line, command
from support.explore_server import post

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt import explore as explore_package
from tiedgpt.cli.explore import read_corpus
from tiedgpt.explore import export
from tiedgpt.explore.page_files import FILE_OF_PATH
from tiedgpt.explore.server import QUIT
from tiedgpt.explore.views import VIEWS
from tiedgpt.explore.views.start import sources

TEXT = "To be, or not to be"
PAGE_FOLDER = Path(explore_package.__file__).parent / "page"
PAGE_FILES = sorted(PAGE_FOLDER.iterdir())


@pytest.fixture
def process(checkpoint, tmp_path):
    """A process of the command. Its model is deleted as soon as the server has started.

    `process.server` has what `post` needs to know of the server.
    """
    copy = shutil.copytree(checkpoint, tmp_path / "model")
    process = subprocess.Popen(
        command("explore", "--no-browser", str(copy)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    address = process.stdout.readline().strip()  # http://127.0.0.1:PORT/SECRET/
    origin, secret = address.rstrip("/").rsplit("/", 1)
    port = int(origin.removeprefix("http://127.0.0.1:"))
    process.server = SimpleNamespace(server_port=port, secret=secret, origin=origin)
    shutil.rmtree(copy)
    yield process
    process.kill()


def assert_answers_a_view(server):
    status, answer = post(server, "next", {"text": TEXT})
    assert status == 200
    assert answer["text"] == TEXT


def test_the_command_serves_until_quit_even_if_the_model_is_deleted(process):
    assert_answers_a_view(process.server)
    status, _ = post(process.server, "quit")
    assert status == 200
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_the_command_serves_until_ctrl_c(process):
    assert_answers_a_view(process.server)
    process.send_signal(signal.SIGINT)  # as Ctrl-C does
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_command_writes_the_page_to_a_file(run, checkpoint, tmp_path):
    file = tmp_path / "new" / "page.html"
    code, out, err = run("explore", "-m", checkpoint, "--export", str(file))
    megabytes = file.stat().st_size / 1e6
    assert code == 0
    assert out == ""
    assert err == (
        f"tiedgpt: note: {file}: {megabytes:.1f} MB; it opens from disk, and on any web server\n"
    )
    assert list(file.parent.iterdir()) == [file]
    assert file.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_leaves_the_file_as_it_was(
    run, checkpoint, monkeypatch, tmp_path
):
    surrogate = "\ud800"  # a character that UTF-8 cannot write
    monkeypatch.setattr(export, "exported_page", lambda shown, progress: surrogate)
    file = tmp_path / "page.html"
    file.write_text("the page before")
    with pytest.raises(UnicodeEncodeError):
        run("explore", "-m", checkpoint, "--export", str(file))
    assert file.read_text() == "the page before"


def test_a_port_that_is_taken_is_refused(run, checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        _, port = other_server.getsockname()
        result = run("explore", "-q", "--port", str(port), checkpoint)
    message = f"port {port}: Address already in use; choose another or leave"
    assert_one_error_line(result, message)


def test_a_port_out_of_range_is_refused(run):
    result = run("explore", "-q", "--port", "70000")
    assert_one_error_line(result, "a whole number from 0 to 65535")


def test_models_of_different_vocabularies_are_refused(run, checkpoint):
    result = run("explore", "-q", checkpoint, "shakespeare-tied")
    assert_one_error_line(result, "different vocabularies")


def test_three_models_are_refused(run):
    result = run("explore", "-q", "a", "-m", "b", "-m", "c")
    assert_one_error_line(result, "expected one or two models, got 3")


def test_the_shipped_counts_are_those_of_the_shipped_vocabulary():
    """In the corpus that tiedgpt comes with, "My lord" is frequent."""
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    name, corpus = read_corpus(file=None, allow_special=False, tokenizer=tokenizer, vocab_size=1024)
    assert name != ""
    (my,) = tokenizer.encode("My")
    (lord,) = tokenizer.encode(" lord")
    assert corpus.count(my, lord) > 50


def test_without_a_file_a_model_with_a_different_vocabulary_has_no_corpus():
    """Tokenizer([]) has the 256 bytes and EOT."""
    found = read_corpus(file=None, allow_special=False, tokenizer=Tokenizer([]), vocab_size=257)
    assert found is None


def test_a_corpus_is_read_from_a_file(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    name, corpus = read_corpus(
        str(file), allow_special=False, tokenizer=Tokenizer([]), vocab_size=257
    )
    assert name == "text.txt"
    assert corpus.ids.tolist() == Tokenizer([]).encode(TEXT)


# The files of the page


def test_page_html_names_each_source_once():
    page = (PAGE_FOLDER / "page.html").read_text(encoding="utf-8")
    names = " ".join(re.findall(r'data-sources="(.*?)"', page)).split()
    assert sorted(names) == sorted(sources())


def test_the_scripts_ask_for_each_view():
    scripts = "".join(file.read_text(encoding="utf-8") for file in PAGE_FOLDER.glob("*.js"))
    # Calls of the scripts, for example ask("lens"
    names = re.findall(r'(?:ask|answers?|panel)\(\s*"(\w+)"', scripts)
    assert set(names) == {*VIEWS, QUIT}


def test_the_server_sends_each_file():
    """ask.html and ask.js are not among the paths below the secret."""
    assert {file.name for file in PAGE_FILES} == {*FILE_OF_PATH.values(), "ask.html", "ask.js"}


def test_the_page_is_small():
    assert sum(file.stat().st_size for file in PAGE_FILES) <= 90_000


@pytest.mark.parametrize("file", PAGE_FILES, ids=lambda file: file.name)
@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"https?:|@import", id="asks-no-other-machine"),
        pytest.param(r"innerHTML|outerHTML|insertAdjacent|document\.write", id="reads-no-html"),
        pytest.param(r"\beval\b", id="no-eval"),
        # The policy of the server refuses these.
        pytest.param(r"\son\w+=\"|\sstyle=|<style|<script>", id="nothing-inline"),
    ],
)
def test_a_file_does_not_contain(file, pattern):
    assert not re.search(pattern, file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", PAGE_FILES, ids=lambda file: file.name)
def test_the_lines_of_a_file_are_short(file):
    text = file.read_text(encoding="utf-8").expandtabs(2)
    assert max(len(line) for line in text.splitlines()) <= 110


# Where the page stands in the package


def modules_of_package():
    package = Path(tiedgpt.__file__).parent
    return [(file, file.read_text(encoding="utf-8")) for file in package.rglob("*.py")]


def test_only_the_command_line_imports_the_page():
    """The page is the package `explore`, the command line the package `cli`."""
    folders = set()
    for file, text in modules_of_package():
        if re.search(r"(from|import) \S*explore", text):
            folders.add(file.parent.name)
    assert folders == {"cli"}


def test_the_page_does_not_import_the_command_line():
    for file, text in modules_of_package():
        if "explore" in file.parts:
            assert "..cli" not in text, file
