"""The commands that look inside a model: next, lens, attribute, score --tokens, generate
--logprobs."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import CONFIG, answer, output, random_model

import tiedgpt
from tiedgpt.cli import tables
from tiedgpt.gpt2.ops import log_softmax
from tiedgpt.study.attribution import ablation, attribute

PROMPT = "abcdefgh"
IDS = list(range(64, 72))
TEXT = b"To be, or not to be.\nThat is it. " * 3


def assert_predicted(one, log_p, token, k, unit):
    """A token's report, of k alternatives, is that of the log probabilities [V] of all tokens."""
    order = np.argsort(-log_p).tolist()
    others = [other for other in order if other != token][:k]
    assert (one["id"], one["rank"]) == (token, 1 + order.index(token))
    assert [other["id"] for other in one["alternatives"]] == others
    scale = -1 / np.log(2) if unit == "bits" else 1
    listed = [one, *one["alternatives"]]
    assert [row[unit] for row in listed] == pytest.approx(log_p[[token, *others]] * scale, rel=1e-4)


@pytest.mark.parametrize(
    "command",
    [
        ("next", PROMPT * 7),
        ("next", "--paths", "a"),
        ("lens", PROMPT),
        ("attribute", PROMPT * 7),
        ("attribute", PROMPT, "a", "--against", "b", "--ablate", "attn.0.head.1"),
        ("generate", PROMPT, "-n", "9", "-s", "3", "--logprobs", "9"),
        ("score",),
        ("score", "--tokens"),
    ],
)
def test_both_heads_are_each_head(run, untied, monkeypatch, command):
    """Under the name of each head is what --head alone says, and as text both are there and fit."""
    both = answer(run, *command, "-m", untied, "--head", "both", stdin=TEXT)
    assert (both["model"], both["head"]) == (untied, "both")
    for head in ("tied", "untied"):
        alone = answer(run, *command, "-m", untied, "--head", head, stdin=TEXT)
        both[head].pop("timing", None), alone.pop("timing", None)
        if command != ("next", PROMPT * 7):  # that lists the tokens of both
            assert both[head] == alone
        assert both[head]["head"] == head
    for width, head in ((80, "untied"), (44, "untied"), (80, "both"), (44, "both")):
        monkeypatch.setenv("COLUMNS", str(width))
        out = output(run, *command, "-m", untied, "--head", head, stdin=TEXT)
        assert {"tied", "untied"} <= {*re.findall(r"\w+", out)} or head == "untied"
        listed = out.partition("\nloss ")[0].replace(untied, "MODEL")
        assert max(map(len, listed.splitlines())) <= width
        if PROMPT * 7 in command:
            assert f" after ...{(PROMPT * 7)[-27:]!r}" in " ".join(out.split())


def test_next(run, untied):
    document = answer(run, "next", "-m", untied, "-k", "3", PROMPT)
    logits = tiedgpt.load_model(untied)(IDS)[-1]
    assert document["prompt_ids"] == IDS
    expected = [*enumerate(np.argsort(-logits)[:3].tolist(), 1)]
    assert [(row["rank"], row["id"]) for row in document["next"]] == expected
    for row in document["next"]:
        numbers = logits[row["id"]], np.exp(log_softmax(logits))[row["id"]]
        assert (row["logit"], row["probability"]) == pytest.approx(numbers, rel=1e-4)
    out = output(run, "next", "-m", untied, "-k", "3", PROMPT).splitlines()
    shown = [line.split()[-2:] for line in out if "%" in line]
    assert shown == [
        [f"{row['probability']:.2%}", f"{row['logit']:.2f}"] for row in document["next"]
    ]


def test_next_by_both_heads(run, untied):
    both = ("next", "-m", untied, "--head", "both", PROMPT)
    heads = answer(run, *both, "-k", "3")
    tokens = [
        {row["id"] for row in heads[head]["next"] if row["rank"] <= 3}
        for head in ("tied", "untied")
    ]
    lines = output(run, *both, "-k", "3").splitlines()
    assert len([line for line in lines if " * " in line]) == len(tokens[0] ^ tokens[1]) > 0
    assert lines[-1] == "* among the 3 likeliest by one head only"
    (header,) = (line for line in lines if " logit " in line)
    assert " ".join(header.split()) == "tied logit rank untied logit rank"
    assert " * " not in output(run, *both, "-k", "257")


def test_next_by_paths(run, checkpoint, monkeypatch):
    arguments = ("next", "-m", checkpoint, "--paths", "a")
    document, model = answer(run, *arguments), tiedgpt.load_model(checkpoint)
    (a,), paths = document["prompt_ids"], document["paths"]
    assert list(paths) == ["raw", "normed", "mlp0", "model"]
    for name, scores in (("raw", model.W_E @ model.W_E[a]), ("model", model([a])[0])):
        assert [row["id"] for row in paths[name]] == np.argsort(-scores)[:10].tolist()
        assert paths[name][0]["logit"] == pytest.approx(scores.max(), rel=1e-4)
    monkeypatch.setenv("COLUMNS", "90")
    text, first = output(run, *arguments).splitlines(), paths["raw"][0]
    assert text[0] == "Likeliest next tokens after 'a', tied:"
    assert text[1].split() == [*paths]
    assert text[2].split()[:3] == ["1", repr(first["token"]), f"{first['logit']:.2f}"], (
        "raw is a score"
    )
    assert text[2].endswith(f"{paths['model'][0]['probability']:.1%}")
    assert text[12] == "", "ten rows"
    assert " ".join(text[-2:]).startswith("raw: W_E, W_U; normed: ")


def test_lens(run, untied, monkeypatch):
    arguments = ("lens", "-m", untied, PROMPT)
    document = answer(run, *arguments)
    assert (document["head"], document["prompt_ids"]) == ("untied", IDS)
    assert [layer["name"] for layer in document["layers"]] == [
        "resid_pre.0",
        "resid_post.0",
        "resid_post.1",
    ]
    last = document["layers"][-1]["positions"]
    found = [[token["id"] for token in position] for position in last]
    assert found == np.argsort(-tiedgpt.load_model(untied)(IDS))[:, :5].tolist()
    monkeypatch.setenv("COLUMNS", "1000")
    title, _, tokens, *rows = output(run, *arguments).splitlines()
    assert title.startswith("The likeliest next token and its probability")
    assert tokens.split() == [*map(repr, PROMPT)]
    assert [row[:9].strip() for row in rows] == ["embedding", "block 0", "block 1"]
    assert rows[-1].split()[-1] == f"{last[-1][0]['probability']:.0%}"


def test_tokens_that_pad_the_vocabulary_have_no_text(run, save):
    model = random_model(replace(CONFIG, vocab_size=300))
    model.parameters["wte.weight"][299] = 40 * model.parameters["wte.weight"][65]
    padded = save("padded", model)
    assert "[299] 100.0%" in output(run, "next", "-m", padded, "--paths", "b")
    assert answer(run, "next", "-m", padded, "--paths", "b")["paths"]["raw"][0]["token"] is None
    assert run("lens", "-m", padded, "abc")[0] == 0


@pytest.mark.parametrize("arguments", [(), ("a", "--against", "b"), ("a",)])
def test_attribute(run, untied, arguments):
    document = answer(run, "attribute", "-m", untied, PROMPT, *arguments)
    model, parts = tiedgpt.load_model(untied), document["parts"]
    logits = model(IDS)[-1]
    tokens = [64, 65][: 1 + ("--against" in arguments)] if arguments else [int(logits.argmax())]
    assert [token["id"] for token in document["tokens"]] == tokens
    total = logits[tokens[0]] - sum(logits[token] for token in tokens[1:])
    assert [document["total"], sum(parts.values())] == pytest.approx([total, total], abs=1e-4)
    assert parts == attribute(model, IDS, *tokens)
    out = output(run, "attribute", "-m", untied, PROMPT, *arguments)
    rows = [line.rsplit(maxsplit=1) for line in out.splitlines()[-12:]]
    largest = sorted(parts, key=lambda part: -abs(parts[part]))[:10]
    assert rows[:10] == [[part, f"{parts[part]:+.3f}"] for part in largest]
    assert [label for label, _ in rows[10:]] == [f"other parts ({len(parts) - 10})", "all parts"]
    assert float(rows[11][1]) == pytest.approx(total, abs=6e-4)
    assert sum(float(value) for _, value in rows[:11]) == pytest.approx(total, abs=6e-3)


def test_attribute_without_some_parts(run, untied):
    removed = ["attn.1.head.2", "mlp.0"]
    arguments = ("attribute", "-m", untied, PROMPT, "a", "--against", "b")
    arguments += ("--ablate", removed[0], "--ablate", removed[1])
    document, model = answer(run, *arguments), tiedgpt.load_model(untied)
    logits, without = model(IDS)[-1], model(IDS, edit=ablation(model.config, removed))[-1]
    assert document["ablated"]["parts"] == removed
    assert document["ablated"]["total"] == pytest.approx(without[64] - without[65], abs=1e-4)
    (a, _), (a_without, _) = document["tokens"], document["ablated"]["tokens"]
    assert (a["logit"], a_without["logit"]) == pytest.approx((logits[64], without[64]), abs=1e-4)
    out = output(run, *arguments)
    assert "Ablated (set to 0): attn.1.head.2, mlp.0\n" in out
    change = without[64] - without[65] - (logits[64] - logits[65])
    (row,) = re.findall(r"^difference of logits .*$", out, re.M)
    assert float(row.split()[-1]) == pytest.approx(change, abs=2e-3)
    assert "rank of 'b'" in out


def test_score_tokens(run, untied):
    arguments = ("score", "-m", untied, "--stride", "64")
    document, plain = (answer(run, *arguments, *flag, stdin=TEXT) for flag in (["--tokens"], []))
    listed = document.pop("predictions")
    rounded = {
        name: pytest.approx(plain[name], rel=1e-6)
        for name in ("nll", "perplexity", "bits_per_byte")
    }
    assert document == {**plain, **rounded}
    ids = tiedgpt.load_tokenizer(untied).encode(TEXT.decode())
    assert [one["place"] for one in listed] == [*range(1, 64), *range(65, len(ids))]
    log_p = log_softmax(tiedgpt.load_model(untied)(ids[:9])[-1])
    assert_predicted(one := listed[8], log_p, ids[9], 5, "bits")
    out = output(run, *arguments, "--tokens", stdin=TEXT)
    title, first, *lines = out.splitlines()
    assert title.split() == ["bits", "token", "likeliest", "others"]
    assert first.split() == ["-", "'T'"]
    assert lines[8].split()[0] == f"{one['bits']:.2f}"
    assert lines[63].split()[0] == "-", "the first token of the second window"
    assert out.endswith(output(run, *arguments, stdin=TEXT))
    assert "\x1b" not in out


@pytest.mark.parametrize(("NO_COLOR", "TERM"), [("", "xterm"), ("1", "xterm"), ("", "dumb")])
def test_colours_on_a_terminal(run, untied, monkeypatch, NO_COLOR, TERM):
    monkeypatch.setenv("NO_COLOR", NO_COLOR)
    monkeypatch.setenv("TERM", TERM)
    plain = run("score", "-m", untied, "--tokens", stdin=TEXT)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    out = run("score", "-m", untied, "--tokens", stdin=TEXT)[1]
    assert ("\x1b[31m" in out) == (NO_COLOR == "" and TERM == "xterm")
    assert re.sub(r"\x1b\[\d+m", "", out) == plain
    for line in out.splitlines():
        for colour, bits in re.findall(r"^\x1b\[(\d+)m *([\d.]+)", line):
            assert colour == ("32" if float(bits) < 1 else "33" if float(bits) < 10 else "31")
            assert line.count("\x1b[0m") == 2, "the number and the token"


def test_generate_logprobs(run, untied):
    arguments = (
        "generate",
        PROMPT,
        "-m",
        untied,
        "-n",
        "6",
        "-s",
        "3",
        "--num-samples",
        "2",
        "-t",
        "0.7",
    )
    samples, model = (
        answer(run, *arguments, "--logprobs", "2")["samples"],
        tiedgpt.load_model(untied),
    )
    plain = answer(run, *arguments)["samples"]
    assert [sample["ids"] for sample in samples] == [sample["ids"] for sample in plain]
    for sample in samples:
        for n, (token, one) in enumerate(zip(sample["ids"], sample["logprobs"], strict=True)):
            log_p = log_softmax(model(IDS + sample["ids"][:n])[-1])
            assert_predicted(one, log_p, token, 2, "logprob")
    second = output(run, *arguments, "--logprobs", "2").partition("--- 2 of 2 ---")[2]
    values = [line.split()[0] for line in second.partition("others\n")[2].splitlines()]
    assert values == [f"{one['logprob']:.2f}" for one in samples[1]["logprobs"]]


def test_logprobs_end_with_the_sample(run, untied, save):
    """The end-of-text token is neither in ids nor in logprobs, and samples end at different
    steps."""
    model = tiedgpt.load_model(untied)
    first = int(model(IDS)[-1].argmax())
    ends = save("ends", tiedgpt.GPT2(replace(model.config, eos_token_id=first), model.parameters))
    flags = ("-n", "90", "-s", "1", "--num-samples", "4", "--logprobs", "0")
    samples = answer(run, "generate", PROMPT, "-m", ends, *flags)["samples"]
    assert len({len(sample["ids"]) for sample in samples}) > 1
    for sample in samples:
        assert [one["id"] for one in sample["logprobs"]] == sample["ids"]
        assert not any(one["alternatives"] for one in sample["logprobs"])


def test_one_seed_for_both_heads(run, checkpoint):
    """A copied head gives the same text, from a new seed too."""
    code, out, err = run("generate", PROMPT, "-m", checkpoint, "--head", "both", "-n", "9")
    assert (code, "no W_U of its own" in err) == (0, True)
    _, tied, untied = re.split(r"--- (?:un)?tied ---\n", out)
    assert tied == untied


def test_a_table_has_as_many_columns_as_the_terminal(monkeypatch, capsys):
    for width, lines in (
        (13, "x  aaaa  bbbb\n\nx  cccc\n"),
        (12, "x  aaaa\n\nx  bbbb\n\nx  cccc\n"),
    ):
        monkeypatch.setenv("COLUMNS", str(width))
        tables.print_table([("x", "aaaa", "bbbb", "cccc")])
        assert capsys.readouterr().out == lines
