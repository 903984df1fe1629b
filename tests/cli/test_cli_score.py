"""What `tiedgpt score` reads, as other commands do. What it prints is in test_cli_look.py.

The tokens of `checkpoint` are bytes, and its context is 64 tokens.
"""

import codecs

import pytest
from support.commands import answer, assert_one_error_line

from tiedgpt import documents


@pytest.mark.parametrize(
    ("arguments", "stdin", "text_bytes", "file"),
    [
        pytest.param(["b"], b"ab", 2, "b", id="file-before-stdin"),
        pytest.param(["é"], b"b", 3, "é", id="file-not-ascii"),
        pytest.param([], b"a\n\nb", 4, "-", id="stdin"),
        pytest.param(["-"], b"a\r\nb", 4, "-", id="dash-is-stdin"),
        pytest.param(["-"], b"-b", 2, "-", id="dash-on-stdin"),
    ],
)
def test_the_text_is_that_of_a_file_or_stdin(
    run, checkpoint, tmp_path, monkeypatch, arguments, stdin, text_bytes, file
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").write_bytes(b"bb")
    (tmp_path / "é").write_bytes("bé".encode())
    document = answer(run, "score", "-m", checkpoint, *arguments, stdin=stdin)
    assert document["text_bytes"] == text_bytes
    assert document["file"] == file


# documents


def test_documents_needs_dask(run, monkeypatch, checkpoint):
    monkeypatch.setattr("tiedgpt.cli.score.find_spec", lambda name: None)
    result = run("documents", "-m", checkpoint, "in.jsonl", "--out", "out")
    assert_one_error_line(result, "this command needs Dask: pip install 'tiedgpt[dask]'")


@pytest.fixture
def scored(run, monkeypatch, checkpoint, tmp_path):
    """scored(*flags, ...) -> the result of documents, whose lines nobody scores.

    errors: how many of 2345 rows have one. stop: an exception that ends the work. calls: a list to
    which the arguments are added with which the lines would be scored.
    """
    (tmp_path / "in.jsonl").write_text('{"text": "ab"}\n')
    words = ["documents", "--out", str(tmp_path / "out"), str(tmp_path / "in.jsonl")]

    def scored(*flags, errors=0, stop=None, calls=None):
        def score_inputs(*arguments):
            if calls is not None:
                calls.append(arguments)
            if stop is not None:
                raise stop

        monkeypatch.setattr("tiedgpt.cli.score.find_spec", lambda name: True)
        monkeypatch.setattr(documents, "score_inputs", score_inputs)
        monkeypatch.setattr(documents, "count_rows", lambda out: (2345, errors))
        model = [] if "-m" in flags else ["-m", checkpoint]
        return run(*words, *flags, *model)

    return scored


@pytest.mark.parametrize("errors", [0, 1, 1001])
def test_a_line_with_an_error_has_an_exit_code_if_that_is_asked_for(scored, tmp_path, errors):
    code, out, err = scored(errors=errors)
    assert (code, out) == (0, "")
    assert err == f"tiedgpt: note: 2,345 rows in {tmp_path / 'out'}, {errors:,} with an error\n"
    assert scored("--strict", errors=errors)[0] == min(errors, 1)


def test_what_documents_are_scored_with(scored, tmp_path, untied):
    """Another head, stride and scheduler, and the bytes of all files as the whole of the work."""
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "abc"}\n')
    flags = ("--stride", "7", "--head", "tied", "--scheduler", "tcp://a:1")
    calls = []
    assert scored(str(other), "-m", untied, *flags, calls=calls)[0] == 0
    ((sources, out, model, settings, scheduler, add),) = calls
    assert [source.file for source in sources] == [str(tmp_path / "in.jsonl"), str(other)]
    assert (out, str(model), scheduler) == (tmp_path / "out", untied, "tcp://a:1")
    assert (settings["head"], settings["stride"]) == ("tied", 7)
    bar = add.__self__
    assert (bar.total, bar.unit) == (31, "B")


def test_documents_that_are_interrupted_say_how_to_go_on(scored, tmp_path):
    code, _, err = scored(stop=KeyboardInterrupt())
    assert code == 130
    assert f"the parts in {tmp_path / 'out'} are complete; the same command goes on" in " ".join(
        err.split()
    )


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
@pytest.mark.parametrize(
    "words",
    [
        ["score"],
        ["score", "a text"],
        ["tokenize"],
        ["generate", "-n", "3", "--seed", "1"],
        ["study", "--corpus", "-"],
        ["study", "--corpus", "a text"],
    ],
    ids=" ".join,
)
def test_a_byte_order_mark_before_a_text_is_dropped_with_a_note(
    run, checkpoint, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    text = "To be, \ufeffor not".encode()
    model = [checkpoint] if words[0] == "study" else ["-m", checkpoint]
    (tmp_path / "a text").write_bytes(text)
    _, expected, _ = run(*words, *model, stdin=text)

    (tmp_path / "a text").write_bytes(codecs.BOM_UTF8 + text)
    code, out, err = run(*words, *model, stdin=codecs.BOM_UTF8 + text)
    source = "a text" if "a text" in words else "stdin"
    assert code == 0
    assert out == expected != ""
    assert err.startswith(f"tiedgpt: note: {source} begins with a byte order mark")


def test_a_special_token_has_the_bytes_of_its_text(run, checkpoint):
    text = b"<|endoftext|>a<|endoftext|>"
    document = answer(run, "score", "-m", checkpoint, "--allow-special", stdin=text)
    assert document["text_tokens"] == 3
    assert document["text_bytes"] == len(text)
    # All tokens but the first are predicted.
    assert document["tokens"] == 2
    assert document["bytes"] == len(b"a<|endoftext|>")


def test_the_default_stride_is_half_the_context(run, checkpoint):
    assert answer(run, "score", "--model", checkpoint, stdin=b"abc")["stride"] == 32


@pytest.mark.slow
@pytest.mark.parametrize(("head", "limit"), [("tied", 2.15), ("untied", 2.18)])
def test_score_of_the_shipped_models(run, shared, head, limit):
    """The text is the tenth of the corpus on which the models were not trained."""
    corpus = (shared / "corpus" / "tinyshakespeare.txt").read_bytes()
    held_out = corpus[len(corpus) * 9 // 10 :]
    # The context is 128 tokens. So each window begins with the last token of the previous window.
    arguments = ("score", "--model", f"shakespeare-{head}", "--stride", "127")
    assert 1.5 < answer(run, *arguments, stdin=held_out)["bits_per_byte"] < limit
