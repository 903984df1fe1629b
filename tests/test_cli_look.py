"""Looking inside a model: next, lens, attribute, score --tokens, generate --logprobs.

Tokens are bytes, and the context is 64 tokens. `untied` is the path of an untied model, and
`checkpoint` the path of a tied model. With --head both, a command answers once with the tied head
and once with the untied one.
"""

import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.commands import answer, assert_one_error_line, output
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt.cli import tables
from tiedgpt.gpt2.ops import log_softmax
from tiedgpt.study.attribution import ablation, attribute

PROMPT = "abcdefgh"
IDS = [64, 65, 66, 67, 68, 69, 70, 71]  # of PROMPT, where tokens are bytes
ID_OF_A = 64
ID_OF_B = 65
LONG_PROMPT = PROMPT * 7
TEXT = b"To be, or not to be.\nThat is it. " * 3


def assert_predicted(report, log_p, token, k, unit):
    """A token's report agrees with the log probabilities [V] of all tokens.

    The report has the token's rank, and the k likeliest of the other tokens: its alternatives.
    unit: "logprob", a log probability in nats, or "bits", the same in bits with a plus sign.
    """
    order = np.argsort(-log_p).tolist()
    likeliest_others = [other for other in order if other != token][:k]
    assert report["id"] == token
    assert report["rank"] == 1 + order.index(token)
    assert [other["id"] for other in report["alternatives"]] == likeliest_others

    expected = log_p[[token, *likeliest_others]]
    if unit == "bits":
        expected = -expected / np.log(2)
    numbers = [row[unit] for row in [report, *report["alternatives"]]]
    assert numbers == pytest.approx(expected, rel=1e-4)


# --head both

NEXT = pytest.param(["next", LONG_PROMPT], id="next")
ATTRIBUTE = pytest.param(["attribute", LONG_PROMPT], id="attribute")
OTHERS = [
    pytest.param(["next", "--paths", "a"], id="next-paths"),
    pytest.param(["lens", PROMPT], id="lens"),
    pytest.param(
        ["attribute", PROMPT, "a", "--against", "b", "--ablate", "attn.0.head.1"],
        id="attribute-ablate",
    ),
    pytest.param(["generate", PROMPT, "-n", "9", "-s", "3", "--logprobs", "9"], id="generate"),
    pytest.param(["score"], id="score"),
    pytest.param(["score", "--tokens"], id="score-tokens"),
]


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("command", [NEXT, ATTRIBUTE, *OTHERS])
def test_the_json_of_both_heads_says_which_is_which(run, untied, command, head):
    document = answer(run, *command, "-m", untied, "--head", "both", stdin=TEXT)
    assert document["model"] == untied
    assert document["head"] == "both"
    assert document[head]["head"] == head


# `next` without --paths is left out: with both heads, it also lists the likeliest tokens of the
# other head.
@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("command", [ATTRIBUTE, *OTHERS])
def test_both_heads_in_the_json_are_each_head_alone(run, untied, command, head):
    both = answer(run, *command, "-m", untied, "--head", "both", stdin=TEXT)[head]
    alone = answer(run, *command, "-m", untied, "--head", head, stdin=TEXT)
    both.pop("timing", None)  # which `generate` has, and which is never the same
    alone.pop("timing", None)
    assert both == alone


@pytest.mark.parametrize("head", ["untied", "both"])
@pytest.mark.parametrize("width", [80, 44])
@pytest.mark.parametrize("command", [NEXT, ATTRIBUTE, *OTHERS])
def test_the_text_fits_the_terminal(run, untied, monkeypatch, command, width, head):
    monkeypatch.setenv("COLUMNS", str(width))
    out = output(run, *command, "-m", untied, "--head", head, stdin=TEXT)
    # Not counted: the lines about the score of a text, which come last, and the model's long path.
    before_the_score, _, _ = out.partition("\nloss ")
    listing = before_the_score.replace(untied, "MODEL")
    assert max(len(line) for line in listing.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 44])
@pytest.mark.parametrize("command", [NEXT, ATTRIBUTE, *OTHERS])
def test_the_text_of_both_heads_names_both(run, untied, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = output(run, *command, "-m", untied, "--head", "both", stdin=TEXT)
    words = re.findall(r"\w+", out)
    assert "tied" in words
    assert "untied" in words


@pytest.mark.parametrize("head", ["untied", "both"])
@pytest.mark.parametrize("width", [80, 44])
@pytest.mark.parametrize("command", [NEXT, ATTRIBUTE])
def test_a_long_prompt_is_shown_by_its_end(run, untied, monkeypatch, command, width, head):
    monkeypatch.setenv("COLUMNS", str(width))
    out = output(run, *command, "-m", untied, "--head", head)
    end = LONG_PROMPT[-27:]  # 30 characters are shown, of which three are dots
    assert f" after ...{end!r}" in " ".join(out.split())


def test_both_heads_have_one_seed(run, checkpoint):
    """Without --seed, a new seed is drawn once. So a copied head gives the same text."""
    code, out, err = run("generate", PROMPT, "-m", checkpoint, "--head", "both", "-n", "9")
    assert code == 0
    assert "no W_U of its own" in err
    _, tied, untied = re.split(r"--- (?:un)?tied ---\n", out)
    assert tied == untied


# next


def test_next_json(run, untied):
    document = answer(run, "next", "-m", untied, "-k", "3", PROMPT)
    logits = tiedgpt.load_model(untied)(IDS)[-1]
    p = np.exp(log_softmax(logits))
    assert document["prompt_ids"] == IDS
    assert [row["rank"] for row in document["next"]] == [1, 2, 3]
    assert [row["id"] for row in document["next"]] == np.argsort(-logits)[:3].tolist()
    for row in document["next"]:
        assert row["logit"] == pytest.approx(logits[row["id"]], rel=1e-4)
        assert row["probability"] == pytest.approx(p[row["id"]], rel=1e-4)


def test_next_for_people(run, untied):
    document = answer(run, "next", "-m", untied, "-k", "3", PROMPT)
    lines = output(run, "next", "-m", untied, "-k", "3", PROMPT).splitlines()
    rows = [line for line in lines if "%" in line]
    assert len(rows) == 3
    for row, expected in zip(rows, document["next"], strict=True):
        *_, probability, logit = row.split()
        assert probability == f"{expected['probability']:.2%}"
        assert logit == f"{expected['logit']:.2f}"


def test_next_by_both_heads_marks_the_tokens_of_one_head(run, untied):
    arguments = ("next", "-m", untied, "--head", "both", "-k", "3", PROMPT)
    document = answer(run, *arguments)
    by_tied = {row["id"] for row in document["tied"]["next"] if row["rank"] <= 3}
    by_untied = {row["id"] for row in document["untied"]["next"] if row["rank"] <= 3}
    of_one_head = by_tied ^ by_untied
    assert len(of_one_head) > 0

    lines = output(run, *arguments).splitlines()
    marked = [line for line in lines if " * " in line]
    assert len(marked) == len(of_one_head)
    assert lines[-1] == "* among the 3 likeliest by one head only"


def test_next_of_all_tokens_by_both_heads_marks_none(run, untied):
    """The model has 257 tokens: the 256 bytes and the end of a text."""
    out = output(run, "next", "-m", untied, "--head", "both", "-k", "257", PROMPT)
    assert " * " not in out


def test_next_by_both_heads_has_the_logit_and_rank_by_each(run, untied):
    out = output(run, "next", "-m", untied, "--head", "both", PROMPT)
    (header,) = [line for line in out.splitlines() if " logit " in line]
    assert header.split() == ["tied", "logit", "rank", "untied", "logit", "rank"]


@pytest.fixture
def by_paths(run, checkpoint):
    """The JSON of the paths from the token "a"."""
    return answer(run, "next", "-m", checkpoint, "--paths", "a")


def test_next_by_paths_json(checkpoint, by_paths):
    model = tiedgpt.load_model(checkpoint)
    (a,) = by_paths["prompt_ids"]
    assert list(by_paths["paths"]) == ["raw", "normed", "mlp0", "model"]
    logits_of = {"raw": model.W_E @ model.W_E[a], "model": model([a])[0]}
    for name, logits in logits_of.items():
        rows = by_paths["paths"][name]
        assert [row["id"] for row in rows] == np.argsort(-logits)[:10].tolist()
        assert rows[0]["logit"] == pytest.approx(logits.max(), rel=1e-4)


def test_next_by_paths_for_people(run, checkpoint, by_paths, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # each row and the legend are one line
    lines = output(run, "next", "-m", checkpoint, "--paths", "a").splitlines()
    title, header, *rows, empty, legend = lines
    assert title == "Likeliest next tokens after 'a', tied:"
    assert header.split() == ["raw", "normed", "mlp0", "model"]
    assert len(rows) == 10
    assert empty == ""
    assert legend.startswith("raw: W_E, W_U; normed: ")

    # A cell of the column "raw" has a token and its score, a cell of "model" a probability.
    likeliest_by_raw = by_paths["paths"]["raw"][0]
    likeliest_by_model = by_paths["paths"]["model"][0]
    rank, token_by_raw, score, *_, probability = rows[0].split()
    assert rank == "1"
    assert token_by_raw == repr(likeliest_by_raw["token"])
    assert score == f"{likeliest_by_raw['logit']:.2f}"
    assert probability == f"{likeliest_by_model['probability']:.1%}"


def test_next_by_paths_as_its_help_shows_it_works_with_the_shipped_model(run):
    (example,) = re.findall(r"^  tiedgpt (next .*--paths.*)$", output(run, "next", "-h"), re.M)
    output(run, *shlex.split(example), "-m", "shakespeare-tied")


def test_next_by_paths_of_a_token_that_the_model_does_not_have(run, save):
    small = save("small", random_model(replace(CONFIG, vocab_size=70)))  # the tokenizer has more
    message = "'z' has id 89, and the model has tokens 0 to 69"
    assert_one_error_line(run("next", "-m", small, "--paths", "z"), message)


@pytest.fixture
def padded(save):
    """The path of a model with more tokens than its tokenizer; the last is likely after "b"."""
    model = random_model(replace(CONFIG, vocab_size=300))
    # The path "raw" scores a token after b by the product of its row of wte with b's row.
    model.parameters["wte.weight"][299] = 40 * model.parameters["wte.weight"][ID_OF_B]
    return save("padded", model)


def test_a_token_that_pads_the_vocabulary_is_shown_by_its_id(run, padded):
    assert "[299] 100.0%" in output(run, "next", "-m", padded, "--paths", "b")
    assert "[299] 100%" in output(run, "lens", "-m", padded, "b")


def test_a_token_that_pads_the_vocabulary_has_no_text_in_the_json(run, padded):
    document = answer(run, "next", "-m", padded, "--paths", "b")
    likeliest = document["paths"]["raw"][0]
    assert likeliest["id"] == 299
    assert likeliest["token"] is None


# lens


def test_lens_json(run, untied):
    document = answer(run, "lens", "-m", untied, PROMPT)
    assert document["head"] == "untied"
    assert document["prompt_ids"] == IDS
    names = [layer["name"] for layer in document["layers"]]
    assert names == ["resid_pre.0", "resid_post.0", "resid_post.1"]

    logits = tiedgpt.load_model(untied)(IDS)
    after_the_last_block = document["layers"][-1]["positions"]
    assert len(after_the_last_block) == len(IDS)
    for position, tokens in enumerate(after_the_last_block):
        likeliest = np.argsort(-logits[position])[:5].tolist()
        assert [token["id"] for token in tokens] == likeliest


def test_lens_for_people(run, untied, monkeypatch):
    document = answer(run, "lens", "-m", untied, PROMPT)
    monkeypatch.setenv("COLUMNS", "1000")  # the table has all columns side by side
    title, _empty, header, *rows = output(run, "lens", "-m", untied, PROMPT).splitlines()
    assert title.startswith("The likeliest next token and its probability")
    assert header.split() == [repr(letter) for letter in PROMPT]
    assert len(rows) == 3
    assert rows[0].startswith("embedding ")
    assert rows[1].startswith("block 0 ")
    assert rows[2].startswith("block 1 ")

    last_layer = document["layers"][-1]
    tokens_at_last_position = last_layer["positions"][-1]
    likeliest = tokens_at_last_position[0]
    last_cell = rows[-1].split()[-1]
    assert last_cell == f"{likeliest['probability']:.0%}"


# attribute

# The arguments after the prompt, and the ids of the tokens that they name
LOGITS = [
    pytest.param([], None, id="likeliest-token"),
    pytest.param(["a"], [ID_OF_A], id="token"),
    pytest.param(["a", "--against", "b"], [ID_OF_A, ID_OF_B], id="difference"),
]


def logit_of(logits, tokens):
    """The logit of one token, or the difference of the logits of two tokens."""
    if len(tokens) == 1:
        return logits[tokens[0]]
    return logits[tokens[0]] - logits[tokens[1]]


@pytest.mark.parametrize(("arguments", "tokens"), LOGITS)
def test_attribute_json(run, untied, arguments, tokens):
    document = answer(run, "attribute", "-m", untied, PROMPT, *arguments)
    model = tiedgpt.load_model(untied)
    logits = model(IDS)[-1]
    if tokens is None:
        tokens = [int(logits.argmax())]
    assert [token["id"] for token in document["tokens"]] == tokens
    total = logit_of(logits, tokens)
    assert document["total"] == pytest.approx(total, abs=1e-4)
    assert sum(document["parts"].values()) == pytest.approx(total, abs=1e-4)
    assert document["parts"] == attribute(model, IDS, *tokens)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="likeliest-token"),
        pytest.param(["a"], id="token"),
        pytest.param(["a", "--against", "b"], id="difference"),
    ],
)
def test_attribute_for_people(run, untied, arguments):
    """The last lines have the ten largest parts, the sum of the others, and the sum of all."""
    document = answer(run, "attribute", "-m", untied, PROMPT, *arguments)
    lines = output(run, "attribute", "-m", untied, PROMPT, *arguments).splitlines()
    parts = document["parts"]
    largest = sorted(parts, key=lambda part: -abs(parts[part]))[:10]

    last_lines = lines[-(len(largest) + 2) :]  # a line each, then the others, then all
    *rows, others, everything = [line.rsplit(maxsplit=1) for line in last_lines]
    assert rows == [[part, f"{parts[part]:+.3f}"] for part in largest]
    others_label, sum_of_others = others
    assert others_label == f"other parts ({len(parts) - 10})"
    total_label, total = everything
    assert total_label == "all parts"
    # Each number is rounded to three decimals, so its error is 5e-4 at most. The errors of eleven
    # numbers add up to 5.5e-3 at most.
    assert float(total) == pytest.approx(document["total"], abs=6e-4)
    shown = [float(number) for _, number in rows]
    shown.append(float(sum_of_others))
    assert sum(shown) == pytest.approx(document["total"], abs=6e-3)


PARTS = ["attn.1.head.2", "mlp.0"]
ABLATED = ["a", "--against", "b", "--ablate", PARTS[0], "--ablate", PARTS[1]]


def ablated_logits(model):
    """The logits after PROMPT if the outputs of PARTS are set to 0."""
    return model(IDS, edit=ablation(model.config, PARTS))[-1]


def test_attribute_without_some_parts_json(run, untied):
    document = answer(run, "attribute", "-m", untied, PROMPT, *ABLATED)
    model = tiedgpt.load_model(untied)
    before = model(IDS)[-1]
    after = ablated_logits(model)
    ablated = document["ablated"]
    assert ablated["parts"] == PARTS
    assert ablated["total"] == pytest.approx(after[ID_OF_A] - after[ID_OF_B], abs=1e-4)
    token_before, _against = document["tokens"]
    token_after, _against = ablated["tokens"]
    assert token_before["logit"] == pytest.approx(before[ID_OF_A], abs=1e-4)
    assert token_after["logit"] == pytest.approx(after[ID_OF_A], abs=1e-4)


def test_attribute_without_some_parts_for_people(run, untied):
    out = output(run, "attribute", "-m", untied, PROMPT, *ABLATED)
    assert "Ablated (set to 0): attn.1.head.2, mlp.0\n" in out
    assert "rank of 'b'" in out

    model = tiedgpt.load_model(untied)
    before = model(IDS)[-1]
    after = ablated_logits(model)
    difference_before = before[ID_OF_A] - before[ID_OF_B]
    difference_after = after[ID_OF_A] - after[ID_OF_B]
    change = difference_after - difference_before
    (row,) = [line for line in out.splitlines() if line.startswith("difference of logits ")]
    shown_change = row.split()[-1]
    assert float(shown_change) == pytest.approx(change, abs=2e-3), "it has three decimals"


# score --tokens


def test_score_tokens_json_has_the_score_of_the_text_too(run, untied):
    document = answer(run, "score", "-m", untied, "--tokens", stdin=TEXT)
    plain = answer(run, "score", "-m", untied, stdin=TEXT)
    assert document.keys() == plain.keys() | {"predictions"}
    rounded = {"nll", "perplexity", "bits_per_byte"}
    for name in rounded:
        assert document[name] == pytest.approx(plain[name], rel=1e-6)
    for name in plain.keys() - rounded:
        assert document[name] == plain[name]


def test_score_tokens_json_has_all_tokens_but_the_first_of_each_window(run, untied):
    """With a stride of 64, the context, windows begin at the places 0 and 64."""
    document = answer(run, "score", "-m", untied, "--tokens", "--stride", "64", stdin=TEXT)
    places = [prediction["place"] for prediction in document["predictions"]]
    assert places == [*range(1, 64), *range(65, len(TEXT))]


def test_score_tokens_json_has_what_the_model_predicts(run, untied):
    document = answer(run, "score", "-m", untied, "--tokens", stdin=TEXT)
    ids = tiedgpt.load_tokenizer(untied).encode(TEXT.decode())
    place = 9
    log_p = log_softmax(tiedgpt.load_model(untied)(ids[:place])[-1])
    prediction = document["predictions"][place - 1]  # the first token is not predicted
    assert prediction["place"] == place
    assert_predicted(prediction, log_p, ids[place], k=5, unit="bits")


def test_score_tokens_for_people(run, untied):
    """Each token has a line. The first token of a window of 64 tokens is not predicted."""
    arguments = ("score", "-m", untied, "--stride", "64")
    document = answer(run, *arguments, "--tokens", stdin=TEXT)
    out = output(run, *arguments, "--tokens", stdin=TEXT)
    header, *lines = out.splitlines()
    assert header.split() == ["bits", "token", "likeliest", "others"]
    first_of_window_1 = lines[0]
    first_of_window_2 = lines[64]
    assert first_of_window_1.split() == ["-", "'T'"]
    assert first_of_window_2.split()[0] == "-"
    for prediction in document["predictions"]:
        line = lines[prediction["place"]]
        assert line.split()[0] == f"{prediction['bits']:.2f}"


def test_score_tokens_for_people_ends_with_the_score_of_the_text(run, untied):
    out = output(run, "score", "-m", untied, "--tokens", stdin=TEXT)
    assert out.endswith(output(run, "score", "-m", untied, stdin=TEXT))
    assert "\x1b" not in out


@pytest.fixture
def coloured(run, untied, monkeypatch):
    """coloured(**environment) -> what `score --tokens` prints on a terminal."""

    def coloured(**environment):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        return output(run, "score", "-m", untied, "--tokens", stdin=TEXT)

    return coloured


def test_colours_on_a_terminal_tell_the_surprisal(run, untied, coloured):
    plain = output(run, "score", "-m", untied, "--tokens", stdin=TEXT)
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


# generate --logprobs

# Two samples of six tokens
SAMPLED = ("-n", "6", "-s", "3", "--num-samples", "2", "-t", "0.7")


def test_generate_logprobs_json(run, untied):
    arguments = ("generate", PROMPT, "-m", untied, *SAMPLED)
    samples = answer(run, *arguments, "--logprobs", "2")["samples"]
    plain = answer(run, *arguments)["samples"]
    assert [sample["ids"] for sample in samples] == [sample["ids"] for sample in plain]

    model = tiedgpt.load_model(untied)
    for sample in samples:
        assert len(sample["logprobs"]) == len(sample["ids"])
        for place, token in enumerate(sample["ids"]):
            ids_before = IDS + sample["ids"][:place]
            log_p = log_softmax(model(ids_before)[-1])
            assert_predicted(sample["logprobs"][place], log_p, token, k=2, unit="logprob")


def test_generate_logprobs_for_people(run, untied):
    arguments = ("generate", PROMPT, "-m", untied, *SAMPLED, "--logprobs", "2")
    _, second = answer(run, *arguments)["samples"]
    _, _, after_the_first = output(run, *arguments).partition("--- 2 of 2 ---")
    _header, _, table = after_the_first.partition("others\n")  # the header ends with "others"
    first_cells = [line.split()[0] for line in table.splitlines()]
    assert first_cells == [f"{token['logprob']:.2f}" for token in second["logprobs"]]


def test_logprobs_end_with_the_sample(run, untied, save):
    """The end-of-text token is not in the logprobs."""
    # The likeliest token is made the one that ends a text. So samples end at different steps.
    model = tiedgpt.load_model(untied)
    likeliest = int(model(IDS)[-1].argmax())
    config = replace(model.config, eos_token_id=likeliest)
    ending = save("ending", tiedgpt.GPT2(config, model.parameters))
    flags = ("-n", "90", "-s", "1", "--num-samples", "4", "--logprobs", "0")
    samples = answer(run, "generate", PROMPT, "-m", ending, *flags)["samples"]
    assert len(samples) == 4
    lengths = {len(sample["ids"]) for sample in samples}
    assert len(lengths) > 1
    for sample in samples:
        assert [token["id"] for token in sample["logprobs"]] == sample["ids"]
        assert all(token["alternatives"] == [] for token in sample["logprobs"])


# Tables


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
    tables.print_table([("x", "aaaa", "bbbb", "cccc")])
    assert capsys.readouterr().out.splitlines() == lines
