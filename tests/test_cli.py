"""The command line as a user meets it: what goes to stdout, to stderr, and the exit code."""

import argparse
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import CONFIG, answer, assert_one_error_line, command, output, random_model

import tiedgpt
from tiedgpt import TiedGPTError, Tokenizer, cli
from tiedgpt.checkpoints import known_models
from tiedgpt.cli import common, convert
from tiedgpt.cli.study import GROUPS, READING
from tiedgpt.errors import ABOVE_0, FRACTION, RATE, Range
from tiedgpt.study import bigrams, corpus, direct_path, gradients, similarity, solved
from tiedgpt.study.report import losses

# What is refused, each in one line: [STDIN |] words => what the line holds. {a,b}: with a, and with
# b. M is a model, a*65 a text, TRAIN a training of the text on stdin.

REFUSED = r"""
generat => no command 'generat'; did you mean generate? (try: tiedgpt -h)
help => no command 'help'; did you mean -h? (try: tiedgpt -h)
run a => no command 'run'; did you mean generate?
documents -h => no command 'documents'; did you mean documents score or documents generate?
xyz => no command 'xyz' (try: tiedgpt -h)
--verson => unknown flag --verson; did you mean --version? (try: tiedgpt -h)
-q list => unknown flag -q (try: tiedgpt -h)
params --modl x => unknown flag --modl; did you mean --model? (try: tiedgpt params -h)
untie --sed=1 => unknown flag --sed; did you mean --seed? (try: tiedgpt untie -h)
params -z => unknown flag -z (try: tiedgpt params -h)
list x => unexpected argument x (try: tiedgpt list -h)
generate -- -x -n => unexpected argument -n (try: tiedgpt generate -h)
download => expected one MODEL, got 0
download '' => no model ''
{download gpt2,params gpt2-xl} -m gpt2 => expected one MODEL, got 2
study => expected at least one MODEL (try: tiedgpt study -h)
score '' => '' is not the name of a file

{,score }x*1000000 => xxx ... xxx
{,--,params --,params --vocab ,score -m M ,download owner/,untie M a }'\x1b\n\x9b\u202e' => \x1b\n\x9b\u202e
generate -m M '\udcff' => not valid UTF-8
generate -m {'/nonexistent/\udcff',x*300,'~nobody-of-this-name/x'} a => no model

params gpt2-small => ; did you mean gpt2?
params --vocab 50000 => both --vocab and --dim are needed
params --vocab 5 --dim 5 --model gpt2 => MODEL excludes --vocab, --dim and --total
params --vocab 1.5 --dim 5 => --vocab: expected a whole number of at least 1, got '1.5'
params --vocab 50 --dim 4 --total 199 => total 199 is less than the token embedding alone, 200

tokenize -m M one two => expected one TEXT, got 2: put it in quotes
tokenize -m M --decode {5 x,-- --x,} => --decode expects token ids, whole numbers, got '
tokenize -m M --decode {257,-- -1} => is no token id from 0 to 256

untie M => expected SRC and DST, got M
untie => expected SRC and DST, got neither
untie -m M a b => expected SRC and DST, got M a b
untie M M => exists and is not empty; choose a new directory
untie M M/config.json{,/x} => Not a directory; choose a new directory
untie M new --init ones => invalid choice: 'ones'
untie --force M new => --force is for tie
tie M new => M is tied already
tie --init zeros M new => --init and --seed are for untie

study M no-such-model => no model 'no-such-model'

generate -m M '' => empty: GPT-2 needs at least one token to continue (to start from nothing: --allow-special
{generate,next,lens,attribute} -m M '' => the prompt is empty
{generate,next,lens,attribute,\n | generate,\n | next,\r\n | generate -} -m M => the prompt is empty
{generate,next,lens,attribute} -m M a*65 => 65 tokens, more than the model's context of 64
generate -m M a*65 => to keep its last 32, add --truncate
generate -m M -n 9 a*65 => to keep its last 55, add --truncate
{generate,next,lens,attribute,tokenize} -m M '<|endoftext|>' => the text holds <|endoftext|>; to read it as t
<|endoftext|> | score -m M => stdin: the text holds <|endoftext|>; to read it as that token, add --allow-spec
ab\xffcd | {generate -m,next -m,score -m,tokenize -m,study --corpus -} M => stdin is not UTF-8 text at byte 2

generate -m M -t 0 a => -t/--temperature: expected a number above 0, got '0'; for the likeliest token alw
generate -m M -p 1.5 a => -p/--top-p: expected a number above 0 and at most 1, got '1.5'
{generate,next} -m M -k 0 a => -k/--top-k: expected a whole number of at least 1, got '0'
generate -m M -s -1 a => -s/--seed: expected a whole number of at least 0, got '-1'
generate -m M --num-samples 10001 a => expected a whole number from 1 to 10000, got '10001'
generate -m M --logprobs -1 a => --logprobs: expected a whole number of at least 0
generate -m M --stop '' a => --stop: expected a text that is not empty
generate -m M --greedy {--top-k 5,-t 1} a => --greedy excludes --temperature, --top-k and --top-p
generate -m M --head neither a => --head: invalid choice: 'neither'
generate -m M --draft M a => is the model itself; name a smaller one

score -m M no-such-file => no-such-file: No such file or directory
{score -m M,train --out new} . => .: Is a directory
a | score -m M => stdin: a score needs two tokens or more, got 1
ab | score -m M --stride 0 => --stride: expected a whole number of at least 1, got '0'
ab | score -m M --stride 65 => stride must be a whole number from 1 to the model's context of 64, got 65

TRAIN --n-head 3 => --n-embd must be a multiple of --n-head, got 128 and 3
TRAIN --n-layer -1 => --n-layer: expected a whole number from 0 to 1000, got '-1'
TRAIN --{n-head,batch,steps} 0 => : expected a whole number from 1 to 2147483647, got '0'
TRAIN --{n-head,batch,steps} 2147483648 => : expected a whole number from 1 to 2147483647, got '2147483648'
TRAIN --n-embd 1000000000 => --n-embd: expected a whole number from 1 to 536870911, got
TRAIN --vocab-size 10 => --vocab-size: expected a whole number from 256 to 2147483647, got '10'
TRAIN --context 1 => --context: expected a whole number from 2 to 2147483647, got '1'
TRAIN --seed -1 => --seed: expected a whole number from 0 to 2147483647, got '-1'
TRAIN --lr {0,nan,fast} => --lr: expected a number above 0, got '
TRAIN --dropout 1.5 => --dropout: expected a number of at least 0 and below 1, got '1.5'
TRAIN --only head => --only head needs --from: the rest of the model must be trained already
TRAIN --from M --only head --head tied => --only head is for an untied model: a tied one has no W_U of its own
TRAIN --from M --only head --dropout 0 => --dropout has no effect with --only head
TRAIN --from M --{n-layer 1,vocab-size 300} => cannot be given with --from: the checkpoint decides it
a*700 | TRAIN --from M --context 65 => a context of 65 tokens exceeds the model's 64
TRAIN => the text to train on must have at least 129 tokens, a context and the token after it, got 0
ab cd ef g | TRAIN --context 8 => the held-out text must have at least 2 tokens, a
caf\xe9 | TRAIN => stdin is not UTF-8 text at byte 3
<|endoftext|>To be or not | TRAIN => the text holds <|endoftext|>; to read it as that token, add
TRAIN --resume => --resume: new holds no training to continue
train --out M/config.json a => M/config.json: Not a directory
train --out M a => --out: M is not empty; choose a new directory

explore M --export {.,..,'',/dev/null} => is a directory or a device; expected a file

{next --paths,attribute a,attribute a b --against} bc -m M => 'bc' is 2 tokens, 'b' 'c'; expected one token
next -m M --paths '' => '' is empty; expected one token, as ' ' is
attribute -m M a --ablate 'x\ny' => 'x\ny' is no part that can be removed; the
"""


def cases():
    for line in filter(None, REFUSED.splitlines()):
        words, _, message = line.partition(" => ")
        choices = re.findall("{(.*?)}", words) or [""]
        for choice in choices[0].split(","):
            yield re.sub("{.*?}", lambda _, choice=choice: choice, words), message


def repeated(text):
    letter, _, n = text.partition("*")
    return letter * int(n) if n else text.encode().decode("unicode_escape")


@pytest.mark.parametrize(("words", "message"), [*cases()])
def test_what_is_refused_in_one_line(run, checkpoint, tmp_path, monkeypatch, words, message):
    """Before the weights are read, and with nothing written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tiedgpt.cli.common.load_heads", lambda *_: pytest.fail("the weights were read")
    )
    stdin, _, words = words.replace("TRAIN", "train - --out new").rpartition(" | ")
    message = re.sub(r"\bM\b", checkpoint, message)
    arguments = []
    for word in shlex.split(words):
        arguments.append(re.sub("^M", checkpoint, word) if word[1:2] in "/" else repeated(word))
    result = run(*arguments, stdin=repeated(stdin).encode("latin-1"))
    assert_one_error_line(result, message)
    assert result[2][:-1].isprintable()
    assert len(result[2]) < 2400
    assert list(tmp_path.iterdir()) == []


def test_flags_may_stand_between_arguments(run, checkpoint, tmp_path):
    assert run("untie", checkpoint, "--init", "zeros", str(tmp_path / "new"), "-q") == (0, "", "")
    between = run("attribute", "a", "-m", checkpoint, "b", "--json")
    assert between == run("attribute", "a", "b", "-m", checkpoint, "--json")
    assert run("tokenize", "--decode", "65", "-m", checkpoint, "66")[1] == "bc\n"


def test_params(run, checkpoint, no_models, monkeypatch):
    wide = output(run, "params")  # it needs no weights
    saved = "Tied 124.4M, untied 163M: tying saves 38.6M, 23.7 % of the untied model."
    for figure in ("124,439,808", "163,037,184", "+38,597,376", "+154.4 MB", saved):
        assert figure in wide
    document = answer(run, "params", "--model", "1558M")
    assert (document["model"], document["config"]["n_layer"]) == ("1558M", 48)
    counts = tiedgpt.count_parameters(tiedgpt.Config(**document["config"]))
    assert document.items() >= {**counts, "difference": 80_411_200}.items()
    total = answer(run, "params", "--model", checkpoint)["tied"]["total"]
    assert total == sum(array.size for array in tiedgpt.load_model(checkpoint).parameters.values())
    assert re.search(r"^total .* 100\.0 %$", wide, re.M)
    for columns in (50, 35):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = output(run, "params")
        assert max(map(len, out.splitlines())) <= columns
        assert set(out.split()) == set(wide.split())


def test_the_calculator_gives_the_figures_people_quote(run):
    for n, percent in ((1, "20.5 %"), (7, "2.9 %"), (70, "0.3 %")):
        out = output(run, "params", "--vocab", "50000", "--dim", "4096", "--total", f"{n}e9")
        saves = f"tying saves 204.8M, {percent} of a model of {n}B."
        assert f"Tied 204.8M, untied 409.6M: {saves}" in " ".join(out.split())
    document = answer(run, "params", "--vocab", "50e3", "--dim", "4096")
    assert (document["tied"]["total"], document["untied"]["total"]) == (204_800_000, 409_600_000)
    assert document["saving_percent"] is None


def test_list(run, checkpoint, no_models, monkeypatch):
    weights = no_models / "weights"
    for name in ("gpt2", "gpt2-xl"):
        shutil.copytree(checkpoint, weights / name)
    (weights / "gpt2-xl" / "config.json").write_text("{}")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(weights))
    code, out, err = run("list", "--json")
    document = json.loads(out)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("tiedgpt: note: gpt2-xl is left out: ")
    total = sum(array.size for array in tiedgpt.load_model(checkpoint).parameters.values())
    size = sum(path.stat().st_size for path in Path(checkpoint).iterdir())
    known = {"model": "gpt2", "head": "tied", "path": str(weights / "gpt2")}
    assert document["here"] == [{**known, "parameters": total, "bytes": size}]
    sizes = {model["model"]: model["parameters"] for model in document["not_here"]}
    assert list(sizes) == ["gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"]
    assert sizes["gpt2-xl"] == 1_557_611_200
    for other in document["not_here"]:  # within the header of the file
        pinned = known_models.MODELS[other["model"]].weights.size
        assert pinned is None or 0 < pinned - other["bytes"] < 50_000
    text = output(run, "list", "-q")
    for part in (f"{total:,}", f"\n  {weights / 'gpt2'}\n", "1,557,611,200", "download MODEL"):
        assert part in text


def test_tokenize(run, checkpoint):
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    ids = tokenizer.encode(" é")
    out = output(run, "tokenize", "--model", checkpoint, " é")
    assert out == f"{ids[0]:>6}  ' '\n{ids[1]:>6}  b'\\xc3'\n{ids[2]:>6}  b'\\xa9'\n"
    document = answer(run, "tokenize", "--model", checkpoint, " é")
    assert document == {"ids": ids, "tokens": [" ", "\\xc3", "\\xa9"]}
    for text in ([" ".join(map(str, ids))], [str(ids)], map(str, ids)):
        assert output(run, "tokenize", "--model", checkpoint, "--decode", *text) == " é\n"
    special = answer(run, "tokenize", "--model", checkpoint, "--allow-special", "<|endoftext|>")
    assert special["ids"] == [tokenizer.eot_id]


def test_untie_and_tie(run, checkpoint, tmp_path):
    untied, tied = str(tmp_path / "untied"), str(tmp_path / "tied")
    code, out, err = run("untie", checkpoint, untied)
    assert (code, out) == (0, "")
    assert err.startswith(f"tiedgpt: note: wrote {untied}: untied, ")
    assert_one_error_line(run("untie", untied, str(tmp_path / "x")), "is untied already")
    assert run("tie", "--quiet", tied, "--model", untied) == (0, "", "")
    original, copy, back = (tiedgpt.load_model(path) for path in (checkpoint, untied, tied))
    np.testing.assert_array_equal(copy.W_U, original.W_E.T)
    assert (copy.config.tied, back.config) == (False, original.config)
    np.testing.assert_equal(back.parameters, dict(original.parameters))
    assert tiedgpt.load_tokenizer(tied).encode("ab") == tiedgpt.load_tokenizer(checkpoint).encode(
        "ab"
    )


def test_two_copies_to_one_directory(run, checkpoint, tmp_path, monkeypatch):
    """The second is refused while the first reads and writes, and leaves nothing in its copy."""
    copy, save, refused = str(tmp_path / "copy"), convert.save_model, []

    def save_later(*arguments):
        monkeypatch.setattr(convert, "save_model", save)
        refused.append(run("untie", "shakespeare-tied", copy))
        save(*arguments)

    monkeypatch.setattr(convert, "save_model", save_later)
    assert run("untie", "-q", checkpoint, copy) == (0, "", "")
    assert_one_error_line(refused[0], "is in use by process")
    assert tiedgpt.load_model(copy).config == tiedgpt.load_model(checkpoint).config.with_head(
        "untied"
    )
    assert tiedgpt.load_tokenizer(copy).merges == []


def test_tie_refuses_to_drop_a_trained_matrix(run, save, tmp_path):
    model = tiedgpt.load_model("shakespeare-untied")
    source = save("source", model, tiedgpt.load_tokenizer("shakespeare-untied"))
    result = run("tie", source, str(tmp_path / "tied"))
    assert_one_error_line(
        result, f"the W_U of {source} is not wte.T: the loss of 64 tokens that the model"
    )
    (figures,) = re.findall(r"from ([\d.]+) to ([\d.]+) nats per token; .* --force", result[2])
    assert float(figures[0]) + 3 < float(figures[1])
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert run("tie", "-q", "--force", source, str(tmp_path / "tied")) == (0, "", "")
    np.testing.assert_array_equal(tiedgpt.load_model(tmp_path / "tied").W_E, model.W_E)


def test_untie_starts_the_matrix_as_asked(run, checkpoint, tmp_path):
    model = tiedgpt.load_model(checkpoint)
    for words, how in (
        ("zeros", ["zeros"]),
        ("random --seed 1", ["random", 1]),
        ("random", ["random", 0]),
    ):
        assert run("untie", checkpoint, str(tmp_path / words), "--init", *words.split())[0] == 0
        np.testing.assert_array_equal(
            tiedgpt.load_model(tmp_path / words).W_U, model.untie(*how).W_U
        )


@pytest.fixture
def text_file(tmp_path):
    """A text of which twelve bytes are frequent."""
    path = tmp_path / "text.txt"
    path.write_text(
        "aab" + "ab" * 119 + "aac" * 20 + "defghijklm" * 100 + "the end\n", encoding="utf-8"
    )
    return str(path)


def study(run, *arguments, stdin=b""):
    """The reports of the models, and the notes."""
    code, out, err = run("study", *arguments, "--json", stdin=stdin)
    assert code == 0, err
    return json.loads(out)["models"], err


def alike(numbers):
    """Equal to the same numbers up to float32's rounding, and to None where one is None."""
    return {name: x if x is None else pytest.approx(x, rel=1e-4) for name, x in numbers.items()}


def test_study_json(run, checkpoint, untied, text_file):
    document = json.loads(output(run, "study", untied, checkpoint, "--corpus", text_file, "--json"))
    assert document["corpus"] == {"file": text_file, "bytes": 1309, "min_count": 100}
    models = {path: tiedgpt.load_model(path) for path in (untied, checkpoint)}
    text = corpus.Corpus.of(
        tiedgpt.load_tokenizer(checkpoint).encode(Path(text_file).read_text()), 257
    )
    by_head = {report["head"]: report for report in document["models"]}
    for head, name, tied_W_E in (
        ("untied", untied, models[checkpoint].W_E),
        ("tied", checkpoint, None),
    ):
        report, model = by_head[head], models[name]
        assert report["model"] == name
        assert report["parameters"] == sum(array.size for array in model.parameters.values())
        counts = {"tokens": 1309, "frequent": 12, "self_prediction": 0.0}
        assert report["corpus"] == {
            **counts,
            "jsd_floor": pytest.approx(direct_path.jsd_floor(text)),
        }
        found = gradients.gradients(model, text.ids[-model.config.n_ctx - 1 :])
        assert report["gradients"] == alike(found.whole())
        assert report["direct_path"] == alike(direct_path.direct_path(model, text))
        assert report["embeddings"] == alike(similarity.embeddings(model, text, tied_W_E))
        assert report["loss"] == alike(losses(model, text.ids))
        for path, expected in bigrams.bigrams(
            model, text, None, solved.solved_paths(model, text)
        ).items():
            assert report["bigrams"][path] == alike(expected)
        assert report["missing"] == alike(solved.missing(report["bigrams"]))
    assert (by_head["tied"]["direct_path"]["asymmetry"], by_head["tied"]["loss"]["swapped"]) == (
        0,
        None,
    )
    assert None not in by_head["untied"]["embeddings"].values()


def test_study_table(run, checkpoint, untied, text_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    lines = output(run, "study", checkpoint, untied, "--corpus", text_file).splitlines()
    assert lines[0].split() == [checkpoint, untied]
    assert len(lines) <= 40
    assert len(GROUPS) <= 8
    assert all(f"  {group[READING]}" in lines for question, group in GROUPS.items() if question)
    reports, _ = study(run, checkpoint, untied, "--corpus", text_file)
    labels = [
        (at, label) for group in GROUPS.values() for at, label in group.items() if at != READING
    ]
    rows = [
        re.split(" {2,}", line.strip()) for line in lines
    ]  # no label or number has two spaces in it
    for (place, label), (found, *cells) in zip(
        labels, [row for row in rows if len(row) == 3], strict=True
    ):
        assert found == label
        for report, cell in zip(reports, cells, strict=True):
            value = report
            for key in place.split("."):
                value = value and value.get(key)
            if value is None or isinstance(value, str):
                assert cell == (value or "-"), place
            else:
                number = float(re.sub("[ ,%]", "", cell)) / (100 if "%" in cell else 1)
                assert number == pytest.approx(value, abs=5.1e-4), place


def test_study_fits_narrow_terminals(run, checkpoint, untied, text_file, monkeypatch):
    numbers = []
    for width in (30, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        out = run("study", *[checkpoint, untied] * 2, "--corpus", text_file)[1]
        assert max(map(len, out.splitlines())) <= width
        numbers.append(sorted(re.findall(r"(?<= )[-\d,]*\d\.\d\d\d(?!\S)", out)))
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) >= 4 * 9
    header = run("study", checkpoint, untied)[1].partition("  Output head")[0].splitlines()
    end = re.match(" +[^ ]+", header[0]).end()
    for name, column in ((checkpoint, slice(end)), (untied, slice(end, None))):
        assert "".join(line[column].strip() for line in header) == name, "names are wrapped"


def test_study_without_a_corpus(run, checkpoint, untied):
    code, out, err = run("study", checkpoint, untied)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("tiedgpt: note: no --corpus: only the measurements that need no text")
    for text in ("symmetric?", "All tokens, by A", "W_U and the tied model's W_E"):
        assert text in out
    assert not re.search("requent|mlp0|Nats|normed|Loss|corpus", out)
    assert run("study", checkpoint, "-m", untied)[1] == out
    document = json.loads(run("study", checkpoint, "--json")[1])
    (report,) = document["models"]
    assert document["corpus"] is report["corpus"] is report["bigrams"] is report["loss"] is None


def test_study_of_other_vocabularies(run, checkpoint, save, text_file):
    model = random_model(replace(CONFIG.with_head("untied"), vocab_size=258))
    other = save("other", model, Tokenizer([("a", "b")]))
    (ours, theirs), err = study(run, checkpoint, other, "--corpus", text_file)
    assert (
        "have different vocabularies: do not compare their losses and other numbers per token"
        in err
    )
    assert err.count("\n") == 1
    assert (ours["corpus"]["tokens"], theirs["corpus"]["tokens"]) == (1309, 1189)
    assert theirs["embeddings"]["out_tied"] is None
    assert theirs["bigrams"] is not None
    small = save(
        "small", random_model(replace(CONFIG, vocab_size=70))
    )  # fewer than the tokenizer's
    (less, other), err = study(run, small, checkpoint, "--corpus", text_file)
    assert (less["loss"], less["bigrams"]) == (None, None)
    assert other["loss"]["own"] > 0
    assert f"{text_file} in the tokens of {small}: token id " in err
    error = "'z' has id 89, and the model has tokens 0 to 69"
    assert_one_error_line(run("next", "-m", small, "--paths", "z"), error)


def test_study_without_a_tokenizer(run, checkpoint, untied, save, tmp_path, text_file):
    bare = tmp_path / "bare"
    shutil.copytree(untied, bare, ignore=lambda *_: ("merges.txt", "vocab.json"))
    (_, report), err = study(run, checkpoint, str(bare), "--corpus", text_file)
    assert "has no tokenizer" in err
    assert "is not measured on the corpus or compared with other models" in err
    assert (report["bigrams"], report["loss"], report["embeddings"]["out_tied"]) == (
        None,
        None,
        None,
    )
    assert report["direct_path"]["asymmetry"] > 1
    shutil.copytree(checkpoint, tmp_path / "tied", ignore=lambda *_: ("merges.txt", "vocab.json"))
    (_, report), _ = study(run, str(tmp_path / "tied"), str(bare))
    assert report["embeddings"]["out_tied"] is None, (
        "their vocabularies are not known to be the same"
    )
    (bare / "merges.txt").write_text("#version: 0.2\nab cd\n", encoding="utf-8")
    (bare / "vocab.json").write_text("{}")
    other = save("other", random_model(CONFIG), Tokenizer([("a", "b")], {}))
    _, err = study(run, checkpoint, str(bare), other)
    assert f"{bare} is not measured on the corpus" in err
    assert f"{checkpoint} and {other} have different vocabularies" in err


def test_study_of_little_text(run, checkpoint, save, text_file):
    (report,), err = study(run, checkpoint, "--corpus", "-", stdin=b"a" * 99)
    assert "stdin is too small for the rows about frequent tokens: 0 of the tokens of" in err
    assert report["bigrams"] is None
    assert report["loss"]["tokens"] == 97, (
        "98 follow a token, but one is the first of the second window"
    )
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"")
    assert (code, "Loss" in out, "stdin is too small for a loss" in err) == (0, False, True)
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"abc" * 1000)
    assert re.search(
        "3 of the tokens of .* occur 100 times or more in it; expected at least 10", err
    )
    assert (code, "by A" in out, "mlp0" in out) == (0, True, False)
    assert "Frequent tokens, " not in out, "no average over a few tokens"
    (report,), err = study(
        run, save("one", random_model(replace(CONFIG, n_ctx=1))), "--corpus", text_file
    )
    assert report["loss"] is None
    assert "has a context of one token: it has no loss" in err


def test_a_damaged_model_is_one_line(run, checkpoint, save, text_file):
    model = tiedgpt.load_model(checkpoint)
    model.parameters["wpe.weight"][:] = np.nan
    damaged = save("damaged", model)
    for words in (
        "next a",
        "attribute a",
        "attribute a b --ablate mlp.0",
        "score F",
        "score F --tokens",
    ):
        arguments = [text_file if word == "F" else word for word in words.split()]
        assert_one_error_line(run(*arguments, "-m", damaged), "checkpoint is damaged")
    result = run("study", checkpoint, damaged, "--corpus", text_file)
    assert_one_error_line(result, f"{damaged}: the model's")
    os.truncate(f"{damaged}/model.safetensors", 5000)
    assert_one_error_line(run("generate", "-m", damaged, "a"), "model.safetensors: truncated")
    assert_one_error_line(
        run("next", "-m", __file__, "a"), "py is not a checkpoint: expected a direct"
    )


def test_help_and_version(run, monkeypatch):
    assert run("--version") == (0, f"tiedgpt {tiedgpt.__version__}\n", "")
    commands = run("-h")[1]
    assert run() == (0, commands, "")
    for name in cli.COMMANDS:
        out = output(run, *name.split(), "-h")
        assert f"usage: tiedgpt {name} [-h] [-q]" in " ".join(out.split())
        assert "\nexamples:\n  tiedgpt" in out
        assert f"\n  {name} " in commands
        assert 2 <= len(re.findall(r"^  -", out, re.M)) <= 20, name
        for example in out.partition("\nexamples:\n")[2].splitlines():
            assert cli.parse(shlex.split(example.rpartition("tiedgpt ")[2].partition(" | ")[0]))
    page = run("untie", "-h")[1].partition("\n\n")[2]
    assert page == run("tie", "-h")[1].partition("\n\n")[2], "one page"
    monkeypatch.setenv("COLUMNS", "60")
    for name in cli.COMMANDS:
        narrow = run(*name.split(), "-h")[1].partition("\nexamples:\n")[0]
        assert max(map(len, narrow.splitlines())) <= 60


@pytest.mark.parametrize(
    ("numbers", "words", "accepted", "refused"),
    [
        (
            Range(1),
            "a whole number of at least 1",
            {"7e3": 7000, str(10**18): 10**18},
            "0 -1 1.5 1e400 1e19",
        ),
        (Range(0, 9), "a whole number from 0 to 9", {"0": 0, "3": 3, "9e0": 9}, "-1 10 0.5"),
        (ABOVE_0, "a number above 0", {"1": 1, "3e-4": 3e-4}, "0 -1"),
        (FRACTION, "a number above 0 and at most 1", {"1": 1, "0.5": 0.5}, "0 1.01 -1"),
        (RATE, "a number of at least 0 and below 1", {"0": 0, "0.5": 0.5}, "1 -0.1"),
    ],
)
def test_a_number_in_a_range(numbers, words, accepted, refused):
    """As text of a flag, and as an argument of a function."""
    for text, value in accepted.items():
        assert common.number(numbers)(text) == numbers.check("n", value) == value
    for text in [*refused.split(), "nan", "inf", "x", "", "\x1b", "9" * 5000]:
        with pytest.raises(
            argparse.ArgumentTypeError, match=r"^expected a (whole )?number .*, got '"
        ):
            common.number(numbers)(text)
    for value in (-1, True, None, "1", [], math.nan, math.inf, 0.5 if numbers.whole else 10**400):
        with pytest.raises(TiedGPTError, match=f"^n must be {words}, got "):
            numbers.check("n", value)
    assert type(numbers.check("n", np.int8(1) if numbers.whole else np.float32(0.5))) in (
        int,
        float,
    )


def test_messages_are_one_line_without_escape_codes(run, tmp_path, monkeypatch):
    """Whatever a file, a token, a model or a directory is called."""
    hostile = "a\nb\x1b[31m\x9b\u202e"
    folder = tmp_path / hostile
    model = str(folder / "model")
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([], {f"<{hostile}>": 256}), model)
    tiedgpt.save_model(random_model(CONFIG), None, folder / "bare")
    shutil.copytree(model, folder / "gpt2")
    shutil.copytree(model, folder / "gpt2-xl")
    (folder / "gpt2-xl" / "config.json").write_text(json.dumps({"model_type": hostile}))
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(folder))
    monkeypatch.setattr("tiedgpt.cli.terminal.sys.stdout.isatty", lambda: True)
    for code, *arguments in (
        (0, "params", "-m", model),
        (2, "tokenize", "-m", model, f"<{hostile}>"),
        (2, "tokenize", "-m", str(folder / "bare"), "a"),
        (0, "tokenize", "-m", model, "--allow-special", f"<{hostile}>{hostile}"),
        (0, "list"),
        (0, "untie", str(folder / "bare"), str(folder / "new")),
        (2, "untie", model, f"{model}/config.json/{hostile}"),
    ):
        result, out, err = run(*arguments)
        assert result == code, (arguments, err)
        assert all(line.isprintable() for line in out.splitlines()), (arguments, out)
        *lines, end = err.split("\n")
        assert end == "", arguments
        for line in lines:
            assert re.match("tiedgpt: (note|error): ", line), (arguments, err)
            assert line.isprintable(), (arguments, err)
        assert err.count("tiedgpt: error: ") == (code == 2)
    for kind in (TiedGPTError, *TiedGPTError.__subclasses__()):
        assert str(kind(hostile)).isprintable()
    text = "a\x1b[2Jb\x07\tc\n\x9b\x7f\u2028é"
    assert cli.terminal.printable(text) == "a\ufffd[2Jb\ufffd\tc\n\ufffd\ufffd\u2028é"


def all_ended(*commands, **options):
    """The processes of these commands, run at the same time."""
    with ThreadPoolExecutor(len(commands)) as pool:
        run = partial(subprocess.run, capture_output=True, text=True, timeout=60, **options)
        return [*pool.map(run, commands)]


FULL = "tiedgpt: error: No space left on device\n"
STREAMS = [
    ("tokenize -h >/dev/full", 2, FULL),
    ("tokenize -m CHECKPOINT a >/dev/full", 2, FULL),
    ("untie CHECKPOINT OUT 2>/dev/full", 0, ""),
    ("xyz 2>/dev/full", 2, ""),
    ("xyz 2>&-", 2, ""),
    ("tokenize -m CHECKPOINT a | true", 0, ""),
    ("tokenize -m CHECKPOINT a <&-", 0, ""),
    ("tokenize -m CHECKPOINT a 0>/dev/null", 0, ""),  # as under nohup: open, but not for reading
    ("tokenize -m CHECKPOINT a >&-", 0, ""),
]


def test_streams_that_are_full_or_closed(checkpoint, tmp_path):
    """A note that cannot be written ends nothing; an answer that cannot be written is an error."""
    lines = [f"{shlex.join(command())} {words}" for words, _, _ in STREAMS]
    lines = [
        line.replace("CHECKPOINT", checkpoint).replace("OUT", f"{tmp_path}/out") for line in lines
    ]
    # With buffers, what cannot be written is known at the end only.
    lines = [f"PYTHONUNBUFFERED={'x' * ('2>/dev/full' in line)} {line}" for line in lines]
    for case, done in zip(STREAMS, all_ended(*lines, shell=True), strict=True):
        assert (case[0], done.returncode, done.stderr) == case


# The command after SIGINT is set to what a terminal's commands start with
INTERRUPTIBLE = """
import atexit, signal, sys, time
import tiedgpt.cli
from tiedgpt.__main__ import main
class Module:
    def run(args):
        {run}
    def add_arguments(parser): pass
def import_module(*_):
    {imports}
    return Module
tiedgpt.cli.import_module = import_module
signal.signal(signal.SIGINT, signal.{handler})
sys.exit(main())
"""
SIGINT = "signal.raise_signal(signal.SIGINT)"
MOMENTS = {
    "imports": (
        f"try: {SIGINT}\n    except BaseException: pass\n    raise ImportError",
        "pass",
        130,
    ),
    "imports later": (
        "",
        f"try: {SIGINT}\n        except BaseException as e: raise ImportError from e",
        130,
    ),
    "second time": ("", f"try: {SIGINT}\n        finally: {SIGINT}", 130),
    "finalizes": ("", f"type('F', (), {{'__del__': lambda _: {SIGINT}}})(); time.sleep(60)", 130),
    "exits": ("", f"atexit.register(lambda: {SIGINT})", 0),
    "ignores": (SIGINT, SIGINT, 0),  # as in a script's `tiedgpt ... &`
}


def test_ctrl_c_at_moments_that_python_reports_or_drops():
    commands = []
    for name, (imports, run, _) in MOMENTS.items():
        handler = "SIG_IGN" if name == "ignores" else "default_int_handler"
        program = INTERRUPTIBLE.format(imports=imports, run=run, handler=handler)
        commands.append([sys.executable, "-c", program, "params"])
    for (name, (*_, code)), done in zip(MOMENTS.items(), all_ended(*commands), strict=True):
        assert (name, done.returncode, done.stderr) == (name, code, "\n" if code else "")


def test_importing_loads_nothing_that_is_not_needed_and_finds_everything():
    """Before the entry handles Ctrl-C, nothing; by a command, no oracle and no module of another
    command."""
    code = """if 1:
        import signal, sys
        handler, before = signal.getsignal(signal.SIGINT), set(sys.modules)
        import tiedgpt.__main__
        new = {name for name in set(sys.modules) - before if not name.startswith(("tiedgpt", "_signal"))}
        assert not new, new
        public = {name for name in dir(tiedgpt) if name[0] != "_"}
        assert public == set(tiedgpt.__all__) == set(tiedgpt._MODULES)
        import tiedgpt.cli
        tiedgpt.cli.main("tokenize -m shakespeare-tied --json a".split())
        others = "torch transformers tiktoken safetensors requests tqdm matplotlib"
        ours = "tiedgpt.training tiedgpt.study tiedgpt.cli.generate"
        assert not sys.modules.keys() & {*others.split(), *ours.split()}
        from tiedgpt import *
        assert GPT2 is tiedgpt.GPT2 and GPT2.__module__ == "tiedgpt.gpt2.model"
        assert all(callable(getattr(tiedgpt, name)) for name in tiedgpt.__all__)
        assert not hasattr(tiedgpt, "nothing")
        assert signal.getsignal(signal.SIGINT) is handler
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_progress_is_a_bar_or_a_line_a_minute_in_a_file(monkeypatch):
    for terminal, delay, interval, expected in (
        (True, 0, 3600, r".*loading a\\nb:  50%.*"),
        (True, 3600, 0, ""),  # a bar only if it takes long
        (False, 0, 3600, ""),
        (False, 3600, 0, "tiedgpt: note: loading a\\\\nb: 50% after 0 min\n"),
    ):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setattr(cli.terminal.ProgressBar, "DELAY", delay)
        monkeypatch.setattr(cli.terminal.ProgressBar, "INTERVAL", interval)
        with cli.terminal.ProgressBar("loading a\nb", 10, "B") as progress:
            time.sleep(0.001)
            progress.add(5)
            shown = sys.stderr.getvalue()
        assert re.fullmatch(expected, shown, re.S), shown
