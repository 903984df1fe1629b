"""What the commands that look inside a model read and print: next, lens, attribute, score, params.

What the numbers are is tested in test_reports.py: here a command's JSON is the report, and its
table shows the report's numbers. Tokens are bytes, and the context is 64 tokens. `untied` is the
path of an untied model, and `checkpoint` the path of a tied model.
"""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.commands import answer, assert_one_error_line, output
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt.cli.output import (
    ProgressBar,
    in_bits,
    painted,
    print_predictions,
    print_table,
    quoted_token,
)
from tiedgpt.study import reports

PROMPT = "abcdefgh"
IDS = [64, 65, 66, 67, 68, 69, 70, 71]  # of PROMPT, where tokens are bytes
A, B = 64, 65
TEXT = "To be, or not to be.\nThat is it. " * 3
TEXT_IDS = np.array(tiedgpt.Tokenizer([]).encode(TEXT))
PARTS = ["attn.1.head.2", "mlp.0"]

# A command -> its report by the library, of a model m and a tokenizer t
REPORTS = {
    f"next {PROMPT} -k 3": lambda m, t: reports.next_report([m], t, IDS, 3)[0],
    "next --paths a": lambda m, t: reports.paths_report(m, t, A, 10),
    f"lens {PROMPT}": lambda m, t: reports.lens_report(m, t, IDS),
    f"attribute {PROMPT}": lambda m, t: reports.logit_report(m, t, IDS),
    f"attribute {PROMPT} a --against b --ablate {PARTS[0]} --ablate {PARTS[1]}": (
        lambda m, t: reports.logit_report(m, t, IDS, A, B, PARTS)
    ),
    "score": lambda m, t: reports.score_report(m, t, TEXT_IDS, stride=32),
    "score --stride 64 --tokens": lambda m, t: reports.score_report(m, t, TEXT_IDS, 64, 5),
}


@pytest.fixture(params=REPORTS)
def command(request):
    """A command line, as words."""
    return request.param.split()


@pytest.mark.parametrize("line", REPORTS)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_json_is_the_report(run, untied, line, head):
    document = answer(run, *line.split(), "-m", untied, "--head", head, stdin=TEXT.encode())
    model = tiedgpt.load_model(untied, head)
    report = REPORTS[line](model, tiedgpt.load_tokenizer(untied))
    if line.startswith("score"):
        question = {"file": "-", "text_tokens": len(TEXT), "text_bytes": len(TEXT)}
    elif "--paths" in line:
        question = {"prompt": "a", "prompt_ids": [A]}
    else:
        question = {"prompt": PROMPT, "prompt_ids": IDS}
    assert document == {"model": untied, **question, **report}


def test_the_json_of_both_heads_has_each_head_alone(run, untied, command):
    both = answer(run, *command, "-m", untied, "--head", "both", stdin=TEXT.encode())
    assert both.pop("model") == untied
    assert both.pop("head") == "both"
    assert list(both) == ["tied", "untied"]
    for head, document in both.items():
        assert document["head"] == head
        if command[0] == "next" and "--paths" not in command:
            # With both heads, it also lists the likeliest tokens of the other head.
            document["next"] = [row for row in document["next"] if row["rank"] <= 3]
        alone = answer(run, *command, "-m", untied, "--head", head, stdin=TEXT.encode())
        assert document == alone


def test_generate_by_both_heads_is_each_head_alone(run, untied):
    line = ["generate", PROMPT, "-n", "9", "-s", "3", "--logprobs", "9", "-m", untied]
    both = answer(run, *line, "--head", "both")
    for head in ["tied", "untied"]:
        alone = answer(run, *line, "--head", head)
        both[head].pop("timing")  # which is never the same
        alone.pop("timing")
        assert both[head] == alone


def test_both_heads_of_a_tied_model_are_said_to_be_one(run, checkpoint):
    """Without --seed, a new seed is drawn once. So a copied head gives the same text."""
    code, out, err = run("generate", PROMPT, "-m", checkpoint, "--head", "both", "-n", "9")
    assert code == 0
    assert "both heads are one" in " ".join(err.split())
    _, tied, untied = re.split(r"--- (?:un)?tied ---\n", out)
    assert tied == untied


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (["next", "--paths", "the"], "the"),
        (["next", "--paths", " the"], None),
        (["next", "--paths", ","], None),
        (["attribute", "To be or", "not"], "not"),
        (["attribute", "To be or", " not", "--against", "the"], "the"),
        (["attribute", "To be or", " not", "--against", " my"], None),
        (["attribute", "To be or", "q"], None),
    ],
)
def test_a_word_without_its_space_is_said_to_be_a_piece(run, words, noted):
    code, _, err = run(*words, "-m", "shakespeare-tied")
    assert code == 0
    if noted is None:
        assert err == ""
    else:
        assert err.count("note: ") == 1
        assert f"note: {noted!r} is a piece of a word" in err
        assert f"has its space: ' {noted}'\n" in err


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (44, "both"),
        (80, "untied"),
        pytest.param(44, "untied", marks=pytest.mark.slow),
        pytest.param(80, "both", marks=pytest.mark.slow),
    ],
)
def test_the_text_fits_the_terminal_and_names_the_heads(
    run, untied, monkeypatch, command, width, head
):
    monkeypatch.setenv("COLUMNS", str(width))
    out = output(run, *command, "-m", untied, "--head", head, stdin=TEXT.encode())
    # Not counted: the lines about the score of a text, which come last, and the model's long path.
    before_the_score, _, _ = out.partition("\nloss, ")
    listing = before_the_score.replace(untied, "MODEL")
    assert max(len(line) for line in listing.splitlines()) <= width
    if head == "both":
        assert {"tied", "untied"} <= set(re.findall(r"\w+", out))


@pytest.mark.parametrize("command", ["next", "attribute"])
def test_a_long_prompt_is_shown_by_its_end(run, untied, command):
    out = output(run, command, "-m", untied, PROMPT * 7)
    shown, _, _ = " ".join(out.split()).partition(" by ")
    assert shown.removesuffix(",").endswith(f" after ...{(PROMPT * 7)[-27:]!r}")


# Tables


def cells(text):
    """The rows of a table as lists of cells; no label and no cell has two spaces in it."""
    return [re.split(" {2,}", line.strip()) for line in text.splitlines()]


@pytest.fixture
def table(run, untied, monkeypatch):
    """table(command line) -> its JSON, and the cells of all lines that it prints."""
    monkeypatch.setenv("COLUMNS", "1000")  # each row is one line

    def table(line):
        words = [*line.split(), "-m", untied]
        document = answer(run, *words, stdin=TEXT.encode())
        return document, cells(output(run, *words, stdin=TEXT.encode()))

    return table


def test_the_table_of_next(table):
    document, (_title, header, *rows) = table(f"next {PROMPT} -k 3")
    assert header == ["probability", "logit"]
    assert len(rows) == 3
    for (_token, *numbers), row in zip(rows, document["next"], strict=True):
        assert numbers == [f"{row['probability']:.2%}", f"{row['logit']:.3f}"]


def test_the_table_of_next_by_both_heads_marks_the_tokens_of_one_head(table):
    document, (_title, header, *rows, foot) = table(f"next {PROMPT} -k 3 --head both")
    assert header == ["tied p", "logit", "rank", "untied p", "logit", "rank"]
    assert foot == ["* among the 3 likeliest by one head only"]
    both = zip(document["tied"]["next"], document["untied"]["next"], strict=True)
    for (tied, untied), (label, *numbers) in zip(both, rows, strict=True):
        assert label.endswith(" *") == (max(tied["rank"], untied["rank"]) > 3)
        expected = []
        for token in (tied, untied):
            expected += [f"{token['probability']:.2%}", f"{token['logit']:.3f}", str(token["rank"])]
        assert numbers == expected


def test_next_of_all_tokens_by_both_heads_marks_none(run, untied):
    """The model has 257 tokens: the 256 bytes and the end of a text."""
    out = output(run, "next", "-m", untied, "--head", "both", "-k", "257", PROMPT)
    assert " * " not in out


def test_the_table_of_paths(table):
    document, (title, header, *rows) = table("next --paths a -k 4")
    assert title[0].endswith("(untied):")
    assert header == ["rank", "raw", "normed", "mlp0", "model"]
    for rank, row in enumerate(rows[:4]):
        by_raw = document["paths"]["raw"][rank]
        by_model = document["paths"]["model"][rank]
        assert row[0] == str(rank + 1)
        assert f"{by_raw['logit']:.3f}" in row
        assert row[-1].split()[-1] == f"{by_model['probability']:.1%}"


def test_the_table_of_lens(table):
    document, (title, _empty, header, *rows) = table(f"lens {PROMPT}")
    assert document["model"] in title[0]
    assert header == ["untied", *[repr(letter) for letter in PROMPT]]
    assert [row[0] for row in rows] == ["embedding", "block 0", "block 1"]
    for row, layer in zip(rows, document["layers"], strict=True):
        likeliest = layer["positions"][-1][0]
        assert row[-1].split()[-1] == f"{likeliest['probability']:.1%}"


def test_the_table_of_attribute_has_the_largest_parts_and_adds_up(table):
    document, (_title, _empty, *rows, others, everything, _empty, _rounded) = table(
        f"attribute {PROMPT} a --against b"
    )
    parts = document["parts"]
    largest = sorted(parts, key=lambda part: -abs(parts[part]))[:10]
    assert rows == [[part, f"{parts[part]:+.3f}"] for part in largest]
    assert others[0] == f"other parts ({len(parts) - 10})"
    assert everything == ["all parts", f"{document['total']:+.3f}"]
    # Each of eleven numbers is rounded to three decimals.
    shown = sum(float(number) for _, number in [*rows, others])
    assert shown == pytest.approx(document["total"], abs=6e-3)


def test_the_table_of_attribute_without_some_parts(table):
    line = f"attribute {PROMPT} a --against b --ablate {PARTS[0]} --ablate {PARTS[1]}"
    document, lines = table(line)
    ablated = document["ablated"]
    before, after = document["total"], ablated["total"]
    assert [f"Ablated (set to 0): {', '.join(PARTS)}"] in lines
    expected = ["difference of logits", f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"]
    assert expected in lines
    before, after = document["tokens"][1]["rank"], ablated["tokens"][1]["rank"]
    change = "0" if after == before else f"{after - before:+}"
    assert ["rank of 'b'", str(before), str(after), change] in lines


def test_the_table_of_score(table):
    document, (title, _empty, *rows) = table("score")
    assert title[0].endswith(", untied, on stdin")
    assert rows[0] == ["loss, nats per token", f"{document['nll']:.4f}"]
    assert rows[1] == ["perplexity", f"{document['perplexity']:,.2f}"]
    assert rows[2] == ["bits per byte", f"{document['bits_per_byte']:.4f}"]


@pytest.mark.parametrize(("stride", "predicted"), [("32", 98), ("64", 97)])
def test_score_says_how_much_was_predicted(run, checkpoint, stride, predicted):
    """All tokens but the first; with a stride of the whole context, but the first of each window"""
    out = output(run, "score", "-m", checkpoint, "--stride", stride, stdin=TEXT.encode())
    text = " ".join(out.split())
    assert f"predicted {predicted} of 99 tokens ({predicted} of 99 bytes)" in text
    assert f"in windows of up to 64 tokens, one every {stride}." in text


def test_score_tokens_has_a_line_for_each_token_and_ends_with_the_score(run, untied):
    """The first token of a window of 64 tokens is not predicted."""
    line = ("score", "-m", untied, "--stride", "64")
    document = answer(run, *line, "--tokens", stdin=TEXT.encode())
    out = output(run, *line, "--tokens", stdin=TEXT.encode())
    header, *lines = out.splitlines()
    assert header.split() == ["bits", "token", "likeliest", "others"]
    assert lines[0].split() == ["-", "'T'"]
    assert lines[64].split()[0] == "-"
    for prediction in document["predictions"]:
        assert lines[prediction["place"]].split()[0] == f"{prediction['bits']:.2f}"
    score = output(run, *line, stdin=TEXT.encode())
    assert out.endswith(f"\n\n{score}")


def test_the_table_of_params(run, checkpoint, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    document = answer(run, "params", checkpoint)
    _title, _empty, _header, *rows = cells(output(run, "params", checkpoint))
    tied, untied = document["tied"], document["untied"]
    assert document["difference"] == untied["total"] - tied["total"]
    counts = {group: (tied["groups"][group], untied["groups"][group]) for group in tied["groups"]}
    counts["total"] = (tied["total"], untied["total"])
    for (label, (few, many)), row in zip(counts.items(), rows, strict=False):
        difference = f"{many - few:+,}" if many > few else "0"
        share = f"{many / untied['total']:.1%}"
        assert row == [label, f"{few:,}", f"{many:,}", difference, share]


def test_the_bar_of_a_score_ends_with_the_tokens_of_all_heads(run, untied, monkeypatch):
    calls = []
    monkeypatch.setattr(ProgressBar, "add", lambda bar, n: calls.append((bar.total, n)))
    for head, count in (("tied", 1), ("both", 2)):
        calls.clear()
        output(run, "score", "-m", untied, "--head", head, stdin=TEXT.encode())
        assert {total for total, _ in calls} == {count * len(TEXT_IDS)}
        assert sum(n for _, n in calls) == count * len(TEXT_IDS)


def test_the_parts_of_an_answer_by_both_heads(run, untied):
    """Each has a heading, and an empty line before it."""
    line = ("-m", untied, "--head", "both")
    out = output(run, "score", *line, "--tokens", stdin=TEXT.encode())
    assert re.findall(r"^--- (\w+) ---$|, (both heads), on", out, re.M) == [
        ("tied", ""),
        ("untied", ""),
        ("", "both heads"),
    ]
    assert "\n\n--- untied ---\n" in out
    out = output(run, "attribute", *line, PROMPT)
    first, second = re.findall(r"^(\n?)The logit of ", f"\n{out}", re.M)
    assert (first, second) == ("\n", "\n")
    out = output(run, "lens", *line, PROMPT)
    assert re.search(r"\n\nuntied ", out)


@pytest.fixture
def padded(save):
    """The path of a model with more tokens than its tokenizer; the last is likely after "b"."""
    model = random_model(replace(CONFIG, vocab_size=300))
    # The path "raw" scores a token after b by the product of its row of wte with b's row.
    model.parameters["wte.weight"][299] = 40 * model.parameters["wte.weight"][B]
    return save("padded", model)


def test_a_token_that_pads_the_vocabulary_is_shown_by_its_id(run, padded):
    assert "[299] 100.0%" in output(run, "next", "-m", padded, "--paths", "b")
    assert "[299] 100.0%" in output(run, "lens", "-m", padded, "b")


@pytest.mark.filterwarnings("ignore::tiedgpt.errors.TiedGPTWarning")
def test_a_token_that_the_model_has_not_is_refused_with_its_id(run, save):
    """The vocabulary has two tokens more than the model: "lo" is 256, and "low" 257."""
    tokenizer = tiedgpt.Tokenizer([("l", "o"), ("lo", "w")])
    model = save("small", random_model(CONFIG), tokenizer)
    line = ("attribute", "-q", "-m", model, "a")
    assert run(*line, "lo")[0] == 0
    result = run(*line, "low")
    assert_one_error_line(result, "'low' has id 257, and the model has tokens 0 to 256")


def test_an_id_between_those_of_the_tokens_is_shown_by_its_number(run, padded):
    """vocab.json gives <|endoftext|> the id 299, and no token has 257."""
    vocab = Path(padded, "vocab.json")
    ids = json.loads(vocab.read_text(encoding="utf-8"))
    vocab.write_text(json.dumps(ids | {"<|endoftext|>": 299}), encoding="utf-8")
    assert "<|endoftext|>" in output(run, "next", "-m", padded, "--paths", "b")
    ids_shown = output(run, "next", "-m", padded, "-k", "300", "b")
    assert "[257]" in ids_shown
    assert "[299]" not in ids_shown


# Colours


@pytest.fixture
def coloured(run, untied, monkeypatch):
    """coloured(**environment) -> what `score --tokens` prints on a terminal."""

    def coloured(**environment):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        return output(run, "score", "-m", untied, "--tokens", stdin=TEXT.encode())

    return coloured


def test_colours_on_a_terminal_tell_the_surprisal(run, untied, coloured):
    plain = output(run, "score", "-m", untied, "--tokens", stdin=TEXT.encode())
    assert "\x1b" not in plain
    out = coloured(NO_COLOR="", TERM="xterm")
    assert re.sub(r"\x1b\[\d+m", "", out) == plain
    rows = re.findall(r"^\x1b\[(\d+)m *([\d.]+)(.*)$", out, re.M)  # colour, number, the rest
    assert len(rows) > 0
    for colour, bits, rest in rows:
        if float(bits) < 1:
            assert colour == "32", "green"
        elif float(bits) < 10:
            assert colour == "33", "yellow"
        else:
            assert colour == "31", "red"
        assert rest.count("\x1b[0m") == 2, "the end of the number's colour and of the token's"


def test_there_are_no_colours_where_they_are_not_wanted(coloured):
    assert "\x1b" not in coloured(NO_COLOR="1", TERM="xterm")
    assert "\x1b" not in coloured(NO_COLOR="", TERM="dumb")


# Narrow terminals, wide characters


@pytest.mark.parametrize(
    "label",
    [
        "\u4f60\u597d",
        "\uff21\uff22",
        "\U0001f600!!",
        "caf\u00e9",
        "cafe\u0301",
        "four\u20dd",  # in a circle
    ],
)
def test_a_column_begins_below_the_one_above_whatever_a_label_has(capsys, label):
    """A Chinese character and an emoji take two columns of the terminal, an accent none."""
    print_table([("four", "1"), (label, "2")])
    first, second = capsys.readouterr().out.splitlines()
    assert (first, second) == ("four  1", f"{label}  2")


@pytest.mark.parametrize(
    ("token", "cut"),
    [
        ("\u4f60" * 20, "'" + "\u4f60" * 4 + "..."),
        ("\u4f60" * 6, "'" + "\u4f60" * 4 + "..."),  # 8 characters with the quotes, 14 columns
        ("\u4f60" * 5, "'" + "\u4f60" * 5 + "'"),
        ("cafe\u0301" * 9, "'cafe\u0301cafe\u0301..."),
    ],
    ids=["chinese", "6 of chinese", "5 of chinese", "accents"],
)
def test_a_token_is_cut_to_columns(token, cut):
    tokenizer = tiedgpt.Tokenizer([], {token: 256})
    assert quoted_token(tokenizer, 256, limit=12) == cut


def test_a_token_of_32_768_letters_is_cut():
    doubled = [("a" * 2**n, "a" * 2**n) for n in range(15)]
    tokenizer = tiedgpt.Tokenizer(doubled, {})
    longest = 256 + 14
    assert quoted_token(tokenizer, longest, limit=12) == "'aaaaaaaa..."


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        pytest.param(13, ["x  aaaa  bbbb", "", "x  cccc"], id="two-columns-fit"),
        pytest.param(12, ["x  aaaa", "", "x  bbbb", "", "x  cccc"], id="one-column-fits"),
    ],
)
def test_columns_that_do_not_fit_the_terminal_are_below(monkeypatch, capsys, width, lines):
    """The label x of the row stands before each part of it."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_table([("x", "aaaa", "bbbb", "cccc")])
    assert capsys.readouterr().out.splitlines() == lines


def test_a_label_has_16_columns_at_least(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    print_table([("aaaa bbbb cccc dddd eeee ffff gggg", "1" * 12)])
    *above, last = capsys.readouterr().out.splitlines()
    assert above == ["aaaa bbbb cccc", "dddd eeee ffff"]
    assert last == f"{'gggg':16}  {'1' * 12}"


@pytest.mark.parametrize(
    ("columns", "unit", "header", "row"),
    [
        (41, "bits", "  bits  token           likeliest others", "     -  'bbbbbbbbbb..."),
        (40, "bits", "  bits  token", "     -  'bbbbbbbbbb..."),
        (41, "logprob", "logprob  token", "      -  'bbbbbbbbbb..."),
        (20, "bits", "  bits  token", "     -  'bbbbbbbb..."),
        (10, "bits", "  bits  token", "     -  'bb..."),
    ],
)
def test_the_columns_of_a_listing(monkeypatch, capsys, columns, unit, header, row):
    """6 or 7 for the number, 14 to 6 for the token, and 17 for each other token that fits."""
    monkeypatch.setenv("COLUMNS", str(columns))
    tokenizer = tiedgpt.Tokenizer([], {"b" * 30: 256})
    print_predictions(tokenizer, unit, [(256, None)])
    assert capsys.readouterr().out.splitlines() == [header, row]


COLOURS = [  # bits, what begins the text on a terminal
    (0.0, "\x1b[32m"),
    (0.99, "\x1b[32m"),
    (1.0, ""),
    (4.99, ""),
    (5.0, "\x1b[33m"),
    (9.99, "\x1b[33m"),
    (10.0, "\x1b[31m"),
    (99.0, "\x1b[31m"),
]


@pytest.mark.parametrize(("bits", "colour"), COLOURS)
def test_the_colour_of_a_surprisal(monkeypatch, bits, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    assert painted("a", bits) == (f"{colour}a\x1b[0m" if colour else "a")
    monkeypatch.setenv("TERM", "dumb")
    assert painted("a", bits) == "a"


def test_a_log_probability_in_bits():
    assert in_bits(3.0, "bits") == 3.0
    assert in_bits(math.log(1 / 8), "logprob") == pytest.approx(3.0)
