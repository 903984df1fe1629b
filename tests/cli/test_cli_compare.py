"""What `tiedgpt compare` prints, and its exit code. What it judges is in tests/comparison."""

import json

import numpy as np
import pytest
from support.commands import assert_one_error_line
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt.cli import compare

MODEL = tiedgpt.load_model("shakespeare-tied")
IDS = [1, 2, 3, 4, 5]
# The model and the tokenizer of `checkpoint`, for tokens
SMALL = random_model(CONFIG)
TOKENIZER = tiedgpt.Tokenizer([])
PROMPT = TOKENIZER.encode("ROMEO:")


def greedy_tokens(n):
    ids = list(PROMPT)
    for _ in range(n):
        ids.append(int(np.argmax(SMALL(ids)[-1])))
    return ids[len(PROMPT) :]


@pytest.fixture
def compared(run, tmp_path):
    """compared(*flags, **arrays) -> what the command says of a file with these arrays."""

    def compared(*flags, **arrays):
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return run("compare", "-q", "-m", "shakespeare-tied", str(path), *flags)

    return compared


@pytest.fixture
def judged(run, checkpoint, tmp_path):
    """judged(document, *flags) -> what the command says of a file of tokens."""

    def judged(document, *flags):
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(document))
        words = ("compare", "-q", "-m", checkpoint, "--trials", "1")
        return run(*words, "--tokens", str(path), *flags)

    return judged


# Arrays


def test_right_and_wrong_arrays(compared):
    logits = MODEL(IDS)
    code, out, err = compared(ids=IDS, logits=logits)
    assert (code, err) == (0, "")
    assert out.endswith("\nall agree (1 compared; 66 activations were not given)\n")
    wrong = logits.copy()
    wrong[2, 7] += 1
    code, out, err = compared("--trials", "1", ids=IDS, logits=wrong)
    assert (code, err) == (1, "")
    assert "first difference: logits[0, 2, 7] is " in out
    assert "; 1 of " in out, "trials"


def test_what_agrees_and_shows_too_little_is_no_difference(compared):
    code, out, _ = compared(ids=[5], logits=MODEL([5]))
    assert code == 0
    assert out.startswith("attention between tokens: not compared")
    assert "what was compared agrees" in out


@pytest.mark.parametrize("kind", ["arrays", "tokens"])
def test_the_head_that_is_asked_for_is_compared(run, untied, tmp_path, kind):
    tied = tiedgpt.load_model(untied).tie()
    if kind == "arrays":
        np.savez(tmp_path / "mine.npz", ids=IDS, logits=tied(IDS))
        words = [str(tmp_path / "mine.npz")]
    else:
        ids = list(tiedgpt.generate(tied, IDS, 6, greedy=True))
        (tmp_path / "mine.json").write_text(json.dumps({"prompt_ids": IDS, "ids": ids}))
        words = ["--tokens", str(tmp_path / "mine.json")]
    words = ["compare", "-q", "-m", untied, "--trials", "1", *words]
    assert run(*words, "--head", "tied")[0] == 0
    assert run(*words)[0] == 1


def test_a_bar_shows_how_many_mistakes_are_tried(compared, judged, monkeypatch):
    counted = []  # (mistakes, of all)
    monkeypatch.setattr(compare.ProgressBar, "add", lambda bar, *of_all: counted.append(of_all))
    wrong = MODEL(IDS)
    wrong[2, 7] += 1
    compared("--trials", "2", ids=IDS, logits=wrong)
    assert [n for n, _ in counted] == [1, 1], "one after the other, as many as --trials says"
    assert {total for _, total in counted} == {2}
    counted.clear()
    judged({"prompt_ids": PROMPT, "ids": [5]})
    assert [n for n, _ in counted] == [1]


def test_targets_are_those_of_gradients(compared):
    ids, targets = np.array([IDS]), np.array([IDS[::-1]])
    _, gradients = tiedgpt.loss_and_gradients(MODEL, ids, targets)
    code, out, _ = compared("--json", ids=ids, targets=targets, logits=MODEL(ids), **gradients)
    assert code == 0
    document = json.loads(out)
    assert document["same"] is True
    assert {row["name"] for row in document["rows"]} == {"logits", *gradients}


def test_arrays_of_which_none_could_differ(run, tmp_path):
    """All logits of this model are 0, so right ones show nothing."""
    zeros, path = str(tmp_path / "zeros"), tmp_path / "mine.npz"
    tiedgpt.save_model(MODEL.untie("zeros"), None, zeros)
    np.savez(path, ids=IDS, logits=np.zeros((5, 1024)))
    code, out, err = run("compare", "-q", "-m", zeros, str(path))
    assert (code, err) == (1, "")
    assert out.startswith("there is nothing to compare: ")
    code, document, _ = run("compare", "-q", "-m", zeros, str(path), "--json")
    assert code == 1
    assert json.loads(document) == {"same": None, "rows": [], "not_compared": [out.strip()]}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": [[1.0]]}, "mine.npz has no `ids`: add the token ids"),
        ({"ids": IDS}, "mine.npz has no activations beside `ids`"),
        ({"ids": IDS, "targets": IDS}, "mine.npz has no activations beside `ids`"),
    ],
)
def test_a_file_without_what_is_needed(compared, arrays, message):
    assert_one_error_line(compared(**arrays), message)


ONE_FILE = "expected one of FILE, --tokens FILE and --vectors FILE (try: tiedgpt compare -h)"
OWN_MODELS = "--vectors has models of its own: leave out --model and --head"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], ONE_FILE),
        (["a", "--vectors", "b"], ONE_FILE),
        (["--tokens", "a", "--vectors", "b"], ONE_FILE),
        (
            ["a", "--precision", "float16"],
            "--precision goes with --tokens: arrays are compared in float32",
        ),
        (["", "-q"], "'' is not the name of a file"),
        (["a\0b"], "'a\\x00b' is not the name of a file"),
        (["--vectors", "a", "-m", "gpt2"], OWN_MODELS),
        (["--vectors", "a", "--head", "tied"], OWN_MODELS),
        (
            ["--vectors", "a", "--trials", "0"],
            "--vectors plants all known mistakes: leave out --trials",
        ),
    ],
)
def test_arguments_that_do_not_go_together(run, words, message):
    assert_one_error_line(run("compare", *words), f"error: {message}\n")


# Tokens


def test_right_tokens(judged):
    tokens = greedy_tokens(4)
    code, out, err = judged({"prompt_ids": PROMPT, "ids": tokens})
    assert (code, err) == (0, "")
    assert out.startswith("identical: the 4 tokens are those that this model takes\n")
    document = {"prompt": "ROMEO:", "text": TOKENIZER.decode(tokens)}
    assert judged(document)[1] == out
    both = {"prompt_ids": PROMPT, "ids": tokens, "text": "x"}
    assert "'text' is not looked at: its ids are" in judged(both)[1]


def test_a_wrong_token_is_shown_with_its_text(judged):
    tokens = greedy_tokens(4)
    wrong = [*tokens[:2], 5]
    code, out, _ = judged({"prompt_ids": PROMPT, "ids": wrong})
    assert code == 1
    header, row, *_ = out.splitlines()
    assert header.split() == ["yours", "this", "model's", "gap", "rounding", "rank"]
    assert row.split()[0] == "tokens[2]"
    assert f"{5} {TOKENIZER.token_text(5)!r}"[:-1] in row.replace('"', "'")
    assert f"{tokens[2]} " in row
    assert row.endswith(" defect")
    code, out, _ = judged({"prompt_ids": PROMPT, "ids": wrong}, "--json")
    assert code == 1
    document = json.loads(out)
    assert document["trials"] == 1, "as many as --trials says"
    (departure,) = document["departures"]
    assert (departure["place"], departure["token"], departure["ours"]) == (2, 5, tokens[2])
    assert departure["token_text"] == TOKENIZER.token_text(5)
    assert departure["ours_text"] == TOKENIZER.token_text(tokens[2])


def test_a_prompt_may_have_a_special_token(judged):
    prompt = [TOKENIZER.eot_id, *PROMPT]
    (token,) = tiedgpt.generate(SMALL, prompt, 1, greedy=True)
    text = {"prompt": "<|endoftext|>ROMEO:", "text": TOKENIZER.decode([token])}
    code, out, _ = judged(text)
    assert (code, out) == judged({"prompt_ids": prompt, "ids": [token]})[:2]
    assert code == 0


def test_a_token_that_pads_the_vocabulary_has_no_text():
    departures = [{"place": 0, "token": 300, "ours": 64}, {"place": 1, "token": 65, "ours": 64}]
    padding, b = compare.with_texts({"departures": departures}, TOKENIZER)["departures"]
    assert (padding["token_text"], padding["ours_text"]) == (None, "a")
    assert (b["token_text"], b["ours_text"]) == ("b", "a")


def test_tokens_that_look_drawn_are_judged_if_the_file_says_greedy(judged):
    document = {"prompt_ids": PROMPT, "ids": list(tiedgpt.generate(SMALL, PROMPT, 40, seed=0))}
    assert_one_error_line(judged(document), "as in a text drawn at temperature")
    code, out, _ = judged({**document, "greedy": True})
    assert code == 1
    assert "defect: tokens[" in out


def test_a_token_of_a_model_without_a_vocabulary_is_shown_by_its_id(run, tmp_path):
    tiedgpt.save_model(SMALL, None, tmp_path / "model")
    right = greedy_tokens(1)[0]
    wrong = (right + 1) % SMALL.config.vocab_size
    (tmp_path / "mine.json").write_text(json.dumps({"prompt_ids": PROMPT, "ids": [wrong]}))
    words = ("compare", "-q", "-m", str(tmp_path / "model"), "--trials", "1", "--tokens")
    code, out, err = run(*words, str(tmp_path / "mine.json"))
    assert (code, err) == (1, "")
    assert out.splitlines()[1].split()[1:3] == [str(wrong), str(right)], out
    code, out, _ = run(*words, str(tmp_path / "mine.json"), "--json")
    (departure,) = json.loads(out)["departures"]
    assert (departure["token_text"], departure["ours_text"]) == (None, None)


@pytest.mark.parametrize("count", [0, 1, 5, 7])
@pytest.mark.parametrize("others", [[], ["logits/tied"], ["logits/tied", "logits/gelu"]])
def test_the_mistakes_of_each_group_of_cases(capsys, count, others):
    """Of many some are shown. A group without a known mistake waits for one that has some."""
    mistakes = {other: [f"mistake of {other}"] for other in others}
    mistakes["steps/tied"] = [f"mistake {number}" for number in range(count)]
    case = {"name": "steps/tied", "status": "wrong", "sentence": "is wrong"}
    compare.print_cases({"cases": [case], "mistakes": mistakes, "sentence": "wrong: 1"})
    lines = capsys.readouterr().out.splitlines()
    of_group = [line.partition(": ")[2] for line in lines if line.startswith("steps/tied: ")]
    shown = [f"mistake {number}" for number in range(min(count, 5))]
    if count > 5:
        shown.append("or 2 other mistakes (--json lists them)")
    if count == 0 and not others:
        shown = ["none of the known mistakes gives these answers"]
    elif count == 0:
        shown = ["no other mistake is known: mend that of logits/tied first"]
    assert of_group == ["is wrong", *shown]


def test_of_many_departures_the_first_are_shown(judged):
    """Each third token is wrong. The others are greedy after it."""
    ids, wrong = list(PROMPT), 0
    for place in range(3 * compare.MOST_ROWS + 6):
        best = int(np.argmax(SMALL(ids)[-1]))
        is_wrong = place % 3 == 0
        ids.append(5 if is_wrong else best)
        wrong += is_wrong
    code, out, _ = judged({"prompt_ids": PROMPT, "ids": ids[len(PROMPT) :]})
    assert code == 1
    rows = [line for line in out.splitlines() if line.startswith("tokens[")]
    assert len(rows) == compare.MOST_ROWS
    assert f"\nand {wrong - compare.MOST_ROWS} more\n\n" in out


def test_a_tie_that_rounding_breaks_has_an_exit_code_of_its_own(judged, monkeypatch):
    departure = {"place": 0, "token": 5, "ours": 6, "gap": 1e-9, "rounding": 0.1, "rank": 2}
    report = {"departures": [{**departure, "is_tie_break": True}], "verdict": "tie-break"}
    report |= {"sentence": "a tie", "notes": [], "mistakes": []}
    monkeypatch.setattr(compare, "compare_tokens", lambda *_, **__: dict(report))
    code, out, _ = judged({"prompt_ids": PROMPT, "ids": [5]})
    assert code == 3
    assert out.splitlines()[1].endswith(" tie-break")


def test_how_a_text_was_read_is_said(judged):
    (token,) = greedy_tokens(1)
    text = "b" if TOKENIZER.decode([token]) == "a" else "a"
    _, out, _ = judged({"prompt": "ROMEO:", "text": f"{text}\ufffd"})
    assert "the text ends within a character, which is not judged" in " ".join(out.split())


@pytest.mark.parametrize("count", [0, compare.MOST_ROWS, compare.MOST_ROWS + 2])
def test_mistakes_that_right_tokens_do_not_exclude(capsys, count):
    report = {"departures": [], "sentence": "right", "verdict": "identical", "notes": []}
    compare.print_departures(report | {"mistakes": count * ["logits: yours is x"]}, tokenizer=None)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "right"
    expected = ["yours may be right, or make one of these mistakes:"] if count else []
    expected += min(count, compare.MOST_ROWS) * ["  logits: is x"]
    if count > compare.MOST_ROWS:
        expected.append("  and 2 more (--json lists them)")
    assert lines == expected


@pytest.mark.parametrize("count", [compare.MOST_ROWS, compare.MOST_ROWS + 2])
def test_departures_and_mistakes_beyond_a_number_are_counted(capsys, count):
    departure = {"place": 0, "token": 5, "ours": 6, "gap": 1.0, "rounding": 0.1, "rank": 2}
    departure["is_tie_break"] = False
    report = {"departures": count * [departure], "sentence": "a defect", "verdict": "defect"}
    report |= {"notes": [compare.ALL_ZERO], "mistakes": count * ["logits: yours is wrong"]}
    compare.print_departures(report, tokenizer=None)
    out = capsys.readouterr().out
    assert out.count("tokens[0]") == compare.MOST_ROWS
    assert ("and 2 more\n" in out) == ("or 2 more" in out) == (count > compare.MOST_ROWS)
    assert " 0 more" not in out
    assert "logits: perhaps yours is wrong" in out


@pytest.mark.parametrize(
    ("total", "said"),
    [(60, ""), (90, "90 known mistakes are planted, which takes about 1.5 min")]
    + [(1234, "1,234 known mistakes are planted, which takes about 20.6 min")],
)
def test_a_note_says_how_long_the_mistakes_take(capsys, monkeypatch, total, said):
    """The first five take a second each. None is said of a minute or less."""

    class Bar:
        def add(self, count, total):
            pass

    now = 100.0
    monkeypatch.setattr(compare.time, "monotonic", lambda: now)
    progress = compare.Progress(Bar())
    for tried in range(compare.TIMED + 2):
        progress(tried, total)
        now += 1
    note = f"tiedgpt: note: {said}; --trials N plants at most N\n" if said else ""
    assert capsys.readouterr().err == note


# Reference values


def test_answers_to_the_reference_values(run, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"encode/split/1": [1]}))
    code, out, err = run("compare", "--vectors", str(path))
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert ["encode/split/1", "wrong"] in [line.split() for line in lines]
    assert any(line.startswith("encode/split/1: ") for line in lines)
    assert "encode: none of the known mistakes gives these answers" in lines
    assert lines[-1].endswith("wrong: 1")
    code, out, _ = run("compare", "--vectors", str(path), "--json")
    assert code == 1
    assert json.loads(out)["wrong"] == 1
