"""`tiedgpt score` as a user meets it.

The tokens of `checkpoint` are bytes, and its context is 64 tokens.
"""

from dataclasses import asdict

import pytest
from support.commands import answer, output

import tiedgpt

WORDS = "Tying saves 38.6M of them, é!\r\n" * 9


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


def test_score_json(run, checkpoint):
    document = answer(run, "score", "--model", checkpoint, "--stride", "10", stdin=WORDS.encode())
    model = tiedgpt.load_model(checkpoint)
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    score = tiedgpt.score(model, tokenizer, tokenizer.encode(WORDS), stride=10)
    size = len(WORDS.encode())
    assert document == {
        "model": checkpoint,
        "head": "tied",
        "file": "-",
        "text_tokens": size,
        "text_bytes": size,
        "context": 64,
        "stride": 10,
        **asdict(score),
    }
    assert document["tokens"] == size - 1, "the first token follows nothing"
    assert document["bytes"] == size - 1


def test_a_special_token_has_the_bytes_of_its_text(run, checkpoint):
    text = b"<|endoftext|>a<|endoftext|>"
    document = answer(run, "score", "-m", checkpoint, "--allow-special", stdin=text)
    assert document["text_tokens"] == 3
    assert document["text_bytes"] == len(text)
    # All tokens but the first are predicted.
    assert document["tokens"] == 2
    assert document["bytes"] == len(b"a<|endoftext|>")


@pytest.fixture
def words_file(tmp_path):
    """The path of a text of 288 bytes."""
    path = tmp_path / "words.txt"
    path.write_bytes(WORDS.encode())
    return str(path)


def test_score_for_people(run, checkpoint, words_file):
    document = answer(run, "score", "--model", checkpoint, words_file)
    title, _empty, *table = output(run, "score", "--model", checkpoint, words_file).splitlines()
    assert title == f"{checkpoint}, tied, on {words_file}"
    assert table[0].split() == ["loss", f"{document['nll']:.4f}"]
    assert table[1].split() == ["perplexity", f"{document['perplexity']:,.2f}"]
    assert table[2].split() == ["bits", "per", "byte", f"{document['bits_per_byte']:.4f}"]


@pytest.mark.parametrize(
    ("stride", "predicted"),
    [
        # All tokens are predicted but the first.
        pytest.param("32", 288 - 1, id="overlapping-windows"),
        # All tokens are predicted but the first of each of five windows.
        pytest.param("64", 288 - 5, id="windows-without-overlap"),
    ],
)
def test_score_says_how_much_was_predicted(run, checkpoint, words_file, stride, predicted):
    out = output(run, "score", "-m", checkpoint, "--stride", stride, words_file)
    text = " ".join(out.split())
    assert f"predicted {predicted} of 288 tokens ({predicted} of 288 bytes)" in text
    assert f"in windows of up to 64 tokens, one every {stride}." in text


def test_the_default_stride_is_half_the_context(run, checkpoint, words_file):
    assert answer(run, "score", "--model", checkpoint, words_file)["stride"] == 32


@pytest.mark.slow
@pytest.mark.parametrize(("head", "limit"), [("tied", 2.15), ("untied", 2.18)])
def test_score_of_the_shipped_models(run, shared, head, limit):
    """The text is the tenth of the corpus on which the models were not trained."""
    corpus = (shared / "corpus" / "tinyshakespeare.txt").read_bytes()
    held_out = corpus[len(corpus) * 9 // 10 :]
    # The context is 128 tokens. So each window begins with the last token of the previous window.
    arguments = ("score", "--model", f"shakespeare-{head}", "--stride", "127")
    assert 1.5 < answer(run, *arguments, stdin=held_out)["bits_per_byte"] < limit
