"""`tiedgpt study`: its JSON, its table, and the notes about what it leaves out.

`checkpoint` and `untied` are the paths of a tied and an untied model, whose tokens are bytes. A
token is frequent if it occurs 100 times or more in the text.
"""

import json
import re
import shutil
from dataclasses import replace

import pytest
from support.commands import answer, assert_one_error_line, output
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.cli.output import ProgressBar, shown, value_at
from tiedgpt.cli.study import find_subjects, measure_all, print_reports
from tiedgpt.study import embeddings
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.reports import study_report

# Twelve of the characters are frequent: a, b and d to m.
TEXT = "aab" + "ab" * 119 + "aac" * 20 + "defghijklm" * 100 + "the end\n"


@pytest.fixture
def text_file(tmp_path):
    """The path of TEXT."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def study(run, *arguments, stdin=b""):
    """Run `study`: the reports of the models in its JSON, and its notes."""
    code, out, err = run("study", *arguments, "--json", stdin=stdin)
    assert code == 0, err
    return json.loads(out)["models"], err


@pytest.mark.parametrize(("text", "is_too_small"), [("a", True), ("ab", False)])
def test_a_loss_needs_two_tokens(run, checkpoint, text, is_too_small):
    (report,), err = study(run, checkpoint, "--corpus", "-", stdin=text.encode())
    assert ("stdin is too small for a loss: expected at least two tokens" in err) == is_too_small
    assert (report["loss"] is None) == is_too_small


@pytest.mark.parametrize(
    ("columns", "pieces"), [("60", [12] * 7 + [6]), ("200", [80, 10])], ids=["60", "200"]
)
def test_a_name_that_is_shorter_than_another_has_empty_cells_below_it(
    run, save, tmp_path, monkeypatch, columns, pieces
):
    """The pieces of a name have 12 columns at least."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", columns)
    save("a", random_model(CONFIG))
    save("b" * 90, random_model(CONFIG, seed=1))
    out = output(run, "study", "-q", "a", "b" * 90)
    assert "None" not in out
    assert [len(letters) for letters in re.findall(r"b{5,}", out)] == pieces


# The JSON


def test_study_json_says_what_was_studied(run, checkpoint, untied, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("abcé", encoding="utf-8")  # which is too small for most measurements
    document = answer(run, "study", "-q", untied, checkpoint, "--corpus", str(corpus))
    assert document["corpus"] == {"file": str(corpus), "bytes": 5, "min_count": 100}
    of_stdin = answer(run, "study", "-q", checkpoint, "--corpus", "-", stdin=b"abc")
    assert of_stdin["corpus"] == {"file": "-", "bytes": 3, "min_count": 100}
    first, second = document["models"]
    assert first["model"] == untied
    assert first["head"] == "untied"
    assert second["model"] == checkpoint
    assert second["head"] == "tied"
    for report in document["models"]:
        parameters = tiedgpt.load_model(report["model"]).parameters
        assert report["parameters"] == sum(array.size for array in parameters.values())


def test_models_of_one_vocabulary_share_the_tokens_of_a_text(run, checkpoint, untied, monkeypatch):
    """To find them takes long in a long text."""
    texts = []
    encode = Tokenizer.encode

    def recorded(tokenizer, text, **options):
        texts.append(text)
        return encode(tokenizer, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", recorded)
    study(run, checkpoint, untied, "--corpus", "-", stdin=b"abc")
    assert texts == ["abc"]


def test_study_json_is_the_reports(run, checkpoint, untied, text_file):
    """The embeddings of the untied model are compared with those of the tied one, given later."""
    corpus = Corpus.of(tiedgpt.load_tokenizer(checkpoint).encode(TEXT), CONFIG.vocab_size)
    eot_id = tiedgpt.load_tokenizer(checkpoint).eot_id
    tied_W_E = tiedgpt.load_model(checkpoint).W_E
    for found, other_W_E in zip(
        study(run, untied, checkpoint, "--corpus", text_file)[0], [tied_W_E, None], strict=True
    ):
        name = found["model"]
        model = tiedgpt.load_model(name)
        assert found == study_report(
            name, model, corpus, other_W_E, lambda *_: ProgressBar("", 1, ""), str, start=eot_id
        )
    assert None not in study(run, untied, checkpoint)[0][0]["embeddings"].values()


def test_a_bar_names_the_model_and_what_is_measured(run, checkpoint, monkeypatch):
    bars = set()
    monkeypatch.setattr(ProgressBar, "add", lambda bar, n: bars.add((bar.doing, bar.total)))
    study(run, checkpoint)
    assert bars == {(f"{checkpoint}: direct path", CONFIG.vocab_size)}


def test_of_two_tied_models_the_first_is_compared(run, checkpoint, untied, save):
    other = save("other", random_model(CONFIG, seed=9))
    expected = study(run, untied, checkpoint)[0][0]["embeddings"]
    assert study(run, untied, checkpoint, other)[0][0]["embeddings"] == expected


# The table

# The label of a row -> the place of its values in the JSON
ROWS = {
    "Output head": "head",
    "Parameters": "parameters",
    "Frequent tokens: 100 times or more": "corpus.frequent",
    "|A - A^T| / |A|": "direct_path.asymmetry",
    "Nats that a symmetric A costs, at least": "corpus.jsd_floor",
    "All tokens, by A": "direct_path.self_prediction",
    "Frequent tokens, by A": "direct_path.self_prediction_frequent",
    "Frequent tokens, in the corpus": "corpus.self_prediction",
    "token counts, no model": "bigrams.unigram.top1",
    "normed: W_E, ln_f, W_U": "bigrams.normed.top1",
    "mlp0: W_E, first MLP, ln_f, W_U": "bigrams.mlp0.top1",
    "model: the whole model": "bigrams.model.top1",
    "started: the same, after <|endoftext|>": "bigrams.started.top1",
    "normed, of another token": "bigrams.normed.top1_chance",
    "started, of another token": "bigrams.started.top1_chance",
    "normed": "gains.normed.gain",
    "normed, standard error": "gains.normed.gain_error",
    "model": "gains.model.gain",
    "started": "gains.started.gain",
    "started, standard error": "gains.started.gain_error",
    "scale: gained by one factor": "missing.scale",
    "head: gained by the best W_U": "missing.head",
    "rank: out of reach of any W_U": "missing.rank",
    "W_E: what follows a token": "tables.W_E.successors.r2",
    "W_E: what precedes it": "tables.W_E.predecessors.r2",
    "W_U: what follows a token": "tables.W_U.successors.r2",
    "W_U: what precedes it": "tables.W_U.predecessors.r2",
    "its count alone: what follows": "tables.counts.successors.r2",
    "its count alone: what precedes": "tables.counts.predecessors.r2",
    "random rows: what follows": "tables.random.successors.r2",
    "no MLP: the path normed": "mlps.table",
    "the first MLP alone": "mlps.first_alone",
    "the best other MLP alone": "mlps.other_alone",
    "the whole model": "mlps.model",
    "the model without its first MLP": "mlps.without_first",
    "without another, the worst": "mlps.without_other",
    "W_E and W_U": "embeddings.in_out",
    "W_E and the tied model's W_E": "embeddings.in_tied",
    "W_U and the tied model's W_E": "embeddings.out_tied",
    "Loss with the model's own head": "loss.own",
    "Loss with x @ wte.T as the head": "loss.swapped",
    "Loss of a uniform guess": "loss.uniform",
}


@pytest.fixture(scope="module")
def two_reports(checkpoint, untied):
    """The reports of a tied and an untied model on TEXT. The transcript has a command's table."""
    ids = tiedgpt.load_tokenizer(checkpoint).encode(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "MIN_PROBED", 10)  # the text has fewer than 100 frequent tokens
        patch.setattr(embeddings, "COMPONENTS", 5)
        subjects = find_subjects([checkpoint, untied])
        return measure_all(subjects, {0: Corpus.of(ids, CONFIG.vocab_size)})


def test_study_table_has_the_values_of_the_json(
    capsys, checkpoint, untied, two_reports, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "400")  # each row is one line
    print_reports(two_reports)
    header, *lines = capsys.readouterr().out.splitlines()
    tied_report, untied_report = two_reports
    assert header.split() == [checkpoint, untied]

    labels = []
    for line in lines:
        cells = re.split(" {2,}", line.strip())  # no label and no number has two spaces in it
        is_row = len(cells) == 3  # other lines are a question or a sentence about the numbers
        if is_row:
            label, tied_cell, untied_cell = cells
            labels.append(label)
            place = ROWS[label]
            field = place.split(".")[-1]
            assert tied_cell == shown(field, value_at(tied_report, place))
            assert untied_cell == shown(field, value_at(untied_report, place))
    assert labels == list(ROWS)


def test_study_fits_narrow_terminals_with_the_same_numbers(capsys, two_reports, monkeypatch):
    """The table of four models: two models, each of them twice."""
    numbers = []
    for width in (80, 30):
        monkeypatch.setenv("COLUMNS", str(width))
        print_reports(two_reports * 2)
        out = capsys.readouterr().out
        assert max(len(line) for line in out.splitlines()) <= width
        numbers.append(numbers_in(out))
    wide, narrow = numbers
    assert narrow == wide
    assert len(wide) >= 4 * 9, "each of four models has at least nine such numbers"


def test_names_leave_about_35_columns_for_the_labels(capsys, two_reports, monkeypatch):
    """Of 80, so a line of each of two names has 20, and two spaces before it."""
    monkeypatch.setenv("COLUMNS", "80")
    print_reports([{**report, "model": 60 * "x"} for report in two_reports])
    header, *_ = capsys.readouterr().out.splitlines()
    assert header.split()[0] == 20 * "x"


def numbers_in(table):
    """The cells with three decimals, sorted, because a narrow table has another order."""
    return sorted(word for word in table.split() if re.fullmatch(r"[-\d,]*\d\.\d\d\d", word))


def test_study_wraps_the_names_of_models(run, checkpoint, untied):
    _, out, _ = run("study", checkpoint, untied)
    header = out.partition("  Output head")[0].splitlines()
    # A name is cut into pieces, one below the other. The first piece fills its column.
    end_of_first_column = re.match(" +[^ ]+", header[0]).end()
    first_column = [line[:end_of_first_column].strip() for line in header]
    second_column = [line[end_of_first_column:].strip() for line in header]
    assert "".join(first_column) == checkpoint
    assert "".join(second_column) == untied


# What is left out, with a note


def answer_without_notes(run, *models):
    return answer(run, "study", *models, "--quiet")


def test_study_without_a_corpus(run, checkpoint, untied):
    code, out, err = run("study", checkpoint, untied)
    assert code == 0
    assert err.startswith("tiedgpt: note: no --corpus: only measurements that need no text")
    assert err.count("\n") == 1
    assert answer_without_notes(run, checkpoint)["corpus"] is None
    assert "symmetric?" in out
    assert "All tokens, by A" in out
    assert "W_U and the tied model's W_E" in out
    # "requent" is in "Frequent" and in "frequent".
    words_of_rows_about_a_text = "requent|mlp0|Nats|normed|Loss|corpus"
    assert not re.search(words_of_rows_about_a_text, out)


def test_study_takes_a_model_as_a_flag(run, checkpoint, untied):
    as_arguments = run("study", checkpoint, untied)
    assert run("study", checkpoint, "-m", untied) == as_arguments


def test_study_of_different_vocabularies(run, checkpoint, save, text_file):
    # The other model has one more token, the two letters "ab".
    config = replace(CONFIG.with_head("untied"), vocab_size=CONFIG.vocab_size + 1)
    other = save("other", random_model(config), Tokenizer([("a", "b")]))
    (report, other_report), err = study(run, checkpoint, other, "--corpus", text_file)
    assert err == (
        f"tiedgpt: note: {checkpoint} and {other} have different vocabularies: do not compare "
        "their losses and other numbers per token; their embeddings are not compared\n"
    )
    assert report["corpus"]["tokens"] == len(TEXT)
    assert other_report["corpus"]["tokens"] == len(TEXT) - TEXT.count("ab"), "ab is one token"
    assert other_report["embeddings"]["out_tied"] is None
    assert other_report["bigrams"] is not None


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
def test_study_of_a_model_with_fewer_tokens_than_its_tokenizer(run, checkpoint, save, text_file):
    """The text has letters whose ids the small model does not have."""
    small = save("small", random_model(replace(CONFIG, vocab_size=70)))  # with a warning
    (report, other_report), err = study(run, small, checkpoint, "--corpus", text_file)
    left_out = "token id .*; measurements on the corpus are left out\n"
    assert re.search(f"{text_file} in the tokens of {small}: {left_out}", err)
    assert report["loss"] is None
    assert report["bigrams"] is None
    assert other_report["loss"]["own"] > 0


def copy_without_tokenizer(model, folder):
    shutil.copytree(model, folder)
    (folder / "merges.txt").unlink()
    (folder / "vocab.json").unlink()


@pytest.fixture
def untied_without_tokenizer(untied, tmp_path):
    """The folder of an untied model without a tokenizer."""
    copy_without_tokenizer(untied, tmp_path / "bare")
    return tmp_path / "bare"


def test_study_without_a_tokenizer(run, checkpoint, untied_without_tokenizer, text_file):
    (_, report), err = study(run, checkpoint, str(untied_without_tokenizer), "--corpus", text_file)
    assert "has no tokenizer" in err
    assert "is not measured on the corpus or compared with other models" in err
    assert report["bigrams"] is None
    assert report["loss"] is None
    assert report["embeddings"]["out_tied"] is None
    assert report["direct_path"]["asymmetry"] > 1, "what needs no text is measured"


def test_study_of_two_models_without_tokenizers_compares_no_embeddings(
    run, checkpoint, untied_without_tokenizer, tmp_path
):
    """Their vocabularies may be different."""
    tied = tmp_path / "tied"
    copy_without_tokenizer(checkpoint, tied)
    (_, report), _ = study(run, str(tied), str(untied_without_tokenizer))
    assert report["embeddings"]["out_tied"] is None


def test_study_of_three_models_of_which_the_second_has_a_damaged_tokenizer(
    run, checkpoint, untied_without_tokenizer, save
):
    """The first and the third model are compared with each other."""
    # The second model gets a merge of the tokens "ab" and "cd", which do not exist.
    (untied_without_tokenizer / "merges.txt").write_text("#version: 0.2\nab cd\n", encoding="utf-8")
    (untied_without_tokenizer / "vocab.json").write_text("{}")
    other = save("other", random_model(CONFIG), Tokenizer([("a", "b")], {}))
    _, err = study(run, checkpoint, str(untied_without_tokenizer), other)
    assert f"{untied_without_tokenizer} is not measured on the corpus" in err
    assert f"{checkpoint} and {other} have different vocabularies" in err


def test_study_of_an_empty_text(run, checkpoint):
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"")
    assert code == 0
    assert "stdin is too small for a loss" in err
    assert "Loss" not in out


def test_study_of_a_text_with_too_few_frequent_tokens(run, checkpoint):
    """Averages over frequent tokens are left out if fewer than ten tokens are frequent."""
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"abc" * 1000)
    assert code == 0
    assert err == (
        "tiedgpt: note: stdin is too small for the rows about frequent tokens: 3 of the tokens of "
        f"{checkpoint} occur 100 times or more in it; expected at least 10\n"
    )
    assert "All tokens, by A" in out
    assert "Frequent tokens, " not in out
    assert "mlp0" not in out


def test_study_of_too_many_different_tokens(run, checkpoint, text_file, monkeypatch):
    monkeypatch.setattr("tiedgpt.study.reports.solved_paths", lambda *_: {})
    (report,), err = study(run, checkpoint, "--corpus", text_file)
    assert "note: " in err
    assert "has too many different tokens to solve for the best W_U" in err
    assert report["missing"] is None


def test_study_of_a_model_with_a_context_of_one_token(run, save, text_file):
    one = save("one", random_model(replace(CONFIG, n_ctx=1)))
    (report,), err = study(run, one, "--corpus", text_file)
    assert report["loss"] is None
    assert err == f"tiedgpt: note: {one} has a context of one token: it has no loss\n"
    two = save("two", random_model(replace(CONFIG, n_ctx=2)))
    (report,), err = study(run, two, "--corpus", "-", stdin=b"abcdefghij" * 100)
    assert report["loss"] is not None
    assert report["corpus"]["frequent"] == 10, "which are enough"
    assert report["bigrams"] is not None
    assert err == ""


def test_study_names_the_damaged_model(run, checkpoint, save, text_file):
    model = tiedgpt.load_model(checkpoint)
    model.parameters["wpe.weight"][:] = float("nan")
    damaged = save("damaged", model)
    result = run("study", checkpoint, damaged, "--corpus", text_file)
    assert_one_error_line(result, f"{damaged}: the model's")
