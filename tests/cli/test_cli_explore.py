"""The command `tiedgpt explore`."""

import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import webbrowser

import pytest
from support.commands import assert_one_error_line, command
from support.explore_server import post
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.cli import explore
from tiedgpt.errors import ArgumentError
from tiedgpt.explore import server as server_module

TEXT = "To be, or not to be"


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "expected_code"), [("quit", 0), ("Ctrl-C", 130)])
def test_the_command_serves_until_it_is_stopped(checkpoint, tmp_path, stop, expected_code):
    """Its model is deleted as soon as the server has started."""
    copy = shutil.copytree(checkpoint, tmp_path / "model")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command("explore", "--no-browser", str(copy)), **pipes) as process:
        url = process.stdout.readline().strip().removesuffix("lab")
        shutil.rmtree(copy)
        status, (answer,) = post(url, "next", text=TEXT)
        assert (status, answer["text"]) == (200, TEXT)
        if stop == "quit":
            assert post(url, "quit")[0] == 200
        else:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == expected_code
    assert "Traceback" not in err


@pytest.fixture
def opened(monkeypatch):
    """The addresses that a browser has opened. The server stops at once."""
    opened = []

    class AtOnce(threading.Thread):
        def start(self):
            assert self.daemon, "the server would wait for the browser at its end"
            self.run()

    def open_url(self, url, *_):
        opened.append(url)

    monkeypatch.setattr(webbrowser.GenericBrowser, "open", open_url)
    monkeypatch.setattr(webbrowser.BackgroundBrowser, "open", open_url)
    monkeypatch.setattr(threading, "Thread", AtOnce)
    monkeypatch.setattr(server_module.Server, "serve", lambda self: None)
    monkeypatch.setenv("BROWSER", "")
    return opened


def test_ctrl_c_stops_the_server(run, checkpoint, monkeypatch):
    """Before it serves, it prints its address."""
    printed = []
    stdout = io.TextIOWrapper(io.BytesIO())  # as of a pipe: what is not flushed is not there yet

    def serve(server):
        printed.append(stdout.buffer.getvalue().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(server_module.Server, "serve", serve)
    monkeypatch.setattr(sys, "stdout", stdout)
    code, _, err = run("explore", "-q", "--no-browser", checkpoint)
    assert (code, err) == (130, "\n")
    (address,) = printed
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\S+/lab\n", address)


WITH_WINDOWS = webbrowser.BackgroundBrowser("firefox")
IN_THE_TERMINAL = webbrowser.GenericBrowser("w3m")


@pytest.mark.parametrize(
    ("found", "variable", "flags", "is_opened"),
    [
        (WITH_WINDOWS, "", [], True),
        (WITH_WINDOWS, "", ["--no-browser"], False),
        (IN_THE_TERMINAL, "", [], False),
        (IN_THE_TERMINAL, "w3m", [], True),
        (None, "", [], False),
    ],
)
def test_a_browser_is_opened(
    run, checkpoint, monkeypatch, opened, found, variable, flags, is_opened
):
    def get():
        if found is None:
            raise webbrowser.Error("no browser")
        return found

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setenv("BROWSER", variable)
    code, out, err = run("explore", checkpoint, *flags)
    assert code == 0
    assert opened == ([out.strip()] if is_opened else [])
    notes = ["the page is at this address, for this machine only; Ctrl-C stops the server"]
    if not is_opened and not flags:
        notes.append("found no browser here: open the address above in one")
    assert err.splitlines() == [f"tiedgpt: note: {note}" for note in notes]


@pytest.mark.parametrize(
    ("arguments", "page"), [([], ""), (["MODEL"], "lab"), (["--corpus", "FILE"], "lab")]
)
def test_the_laboratory_is_opened_for_own_models_or_an_own_text(
    run, checkpoint, tmp_path, monkeypatch, opened, arguments, page
):
    (tmp_path / "text.txt").write_text(TEXT)
    values = {"MODEL": checkpoint, "FILE": str(tmp_path / "text.txt")}
    monkeypatch.setattr(webbrowser, "get", lambda: WITH_WINDOWS)
    code, out, _ = run("explore", *[values.get(argument, argument) for argument in arguments])
    assert code == 0
    assert opened == [out.strip()]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/" + page, out.strip())


def test_what_is_shown(run, checkpoint, untied, tmp_path, monkeypatch):
    """Each model by its own head. When the server is done, its port is free."""
    (tmp_path / "text.txt").write_text(f"{TEXT}<|endoftext|>")
    servers = []
    monkeypatch.setattr(server_module.Server, "serve", lambda server: servers.append(server))
    corpus = ("--corpus", str(tmp_path / "text.txt"), "--allow-special")
    code, out, _ = run("explore", "--no-browser", untied, checkpoint, *corpus)
    (server,) = servers
    assert (code, out) == (0, f"{server.url}lab\n")
    assert server.server_port > 1023, "a free port is no port of the system"
    assert server.socket.fileno() == -1, "closed"
    shown = server.shown
    assert shown.names == [untied, checkpoint]
    assert [model.config.head for model in shown.models] == ["untied", "tied"]
    assert shown.corpus_name == "text.txt"
    assert shown.corpus.ids[-1] == shown.tokenizer.eot_id


@pytest.fixture
def refused(monkeypatch):
    """A command that is not refused fails, where a server would wait for ever."""

    def serve(server):
        pytest.fail(f"it serves at port {server.server_port}")

    monkeypatch.setattr(server_module.Server, "serve", serve)


@pytest.mark.usefixtures("refused")
def test_a_port_that_is_taken_is_refused(run, checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        _, port = other_server.getsockname()
        result = run("explore", "-q", "--port", str(port), checkpoint)
    assert_one_error_line(
        result, f"port {port}: Address already in use; choose another or leave --port out\n"
    )


@pytest.mark.usefixtures("refused")
def test_models_with_other_tokens_are_refused(run, checkpoint, save):
    """Both have 257 of them. transcript.txt has two models of different sizes."""
    other = save("other", random_model(CONFIG), Tokenizer([], {"<|end|>": 256}))
    result = run("explore", "-q", "--no-browser", checkpoint, other)
    both = f"{checkpoint} and {other}"
    assert_one_error_line(result, f"{both} have different vocabularies; expected the same\n")


def test_the_corpus(tmp_path):
    """A file; without one, the counts of the shipped text for the shipped vocabulary only."""
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    bytes_only = Tokenizer([])
    name, corpus = explore.read_corpus(str(file), False, bytes_only, vocab_size=257)
    assert name == "text.txt"
    assert corpus.ids.tolist() == bytes_only.encode(TEXT)
    file.write_text(f"{TEXT}<|endoftext|>", encoding="utf-8")
    with pytest.raises(
        ArgumentError, match=r"/text\.txt holds <\|endoftext\|>; .*--allow-special$"
    ):
        explore.read_corpus(str(file), False, bytes_only, vocab_size=257)
    _, corpus = explore.read_corpus(str(file), True, bytes_only, vocab_size=257)
    assert corpus.ids.tolist() == [*bytes_only.encode(TEXT), 256]
    assert explore.read_corpus(None, False, bytes_only, vocab_size=257) is None
    assert explore.read_corpus(None, False, bytes_only, vocab_size=1024) is None

    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    name, corpus = explore.read_corpus(None, False, tokenizer, vocab_size=1024)
    (my,) = tokenizer.encode("My")
    (lord,) = tokenizer.encode(" lord")
    assert name == "the text that the shakespeare models learned from"
    assert explore.read_corpus(None, False, tokenizer, vocab_size=1025) is None, "a padded model"
    assert corpus.count(my, lord) > 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "port must be a whole number from 0 to 65535, got 65536"),
        (["a", "b", "c"], "expected one or two models, got 3"),
        (["--allow-special"], "--allow-special needs --corpus"),
    ],
)
def test_wrong_arguments_are_refused(run, arguments, message):
    assert_one_error_line(run("explore", "-q", *arguments), message)
