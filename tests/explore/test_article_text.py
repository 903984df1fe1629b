"""The text of the article: its figures, its sources, its length, and that what it says holds."""

import json
import re
from argparse import ArgumentTypeError
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from page import article
from page.article import ELEMENTS
from page.pictures import MINUS, all_pictures, filled, percent
from support.node import run_node

from tiedgpt.checkpoints.model_names import MODELS
from tiedgpt.cli import COMMANDS
from tiedgpt.cli.options import whole_number
from tiedgpt.gpt2.ops import log_softmax

ROOT = Path(__file__).resolve().parents[2]
SOURCE = article.read("index.html")
FIGURES = json.loads(article.read("figures.json"))
TEXTS = FIGURES["texts"]
# Numbers that are not figures: ends of scales, starts and sizes that were chosen, years, part
# numbers, what a name has in it
CHOSEN = {"0", "1", "1.41", "3", "8", "95", "100", "0.02", "0.2", "64", "2026", "50"}


class Section(HTMLParser):
    """The words of each section that a reader has to read, without pictures, tables and sources."""

    LEFT_OUT = frozenset({"figure", "form", "table", "ol", "details", "title", "style", "script"})
    LEFT_OUT_CLASSES = frozenset({"source", "note", "questions", "references"})
    EMPTY = frozenset({"meta", "link", "input", "br", "circle", "rect", "path", "line"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: dict[str, list[str]] = {}
        self.name = ""
        self.open: list[bool] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag in ("section", "article"):
            self.name = values.get("id", "")
            self.words[self.name] = []
        if tag not in self.EMPTY:
            classes = set((values.get("class") or "").split())
            skip = tag in self.LEFT_OUT or bool(classes & self.LEFT_OUT_CLASSES)
            if tag == "article":
                self.open = [False] * len(self.open)
            self.open.append(skip)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_data(self, data):
        if self.name and not any(self.open):
            self.words[self.name] += re.findall(r"\w\S*", data)


@pytest.fixture(scope="module")
def page():
    return filled(SOURCE, FIGURES)


@pytest.fixture(scope="module")
def words(page):
    return Section(page).words


def test_every_place_is_filled(page):
    assert not re.search(r'<(\w+)[^>]* data-(figure|words|picture)="[^"]*"[^>]*></\1>', page)
    assert "data-value" not in page


def test_every_figure_is_shown():
    """With or without its interval."""
    page = SOURCE + "".join(all_pictures(FIGURES).values())
    for attribute, part in (("figure|value|none", TEXTS), ("words", FIGURES["words"])):
        shown = re.findall(rf'data-(?:{attribute})="([^"]*)"', page)
        names = {name.removesuffix(".mean") for name in shown}
        assert {name.removesuffix(".mean") for name in part} == names


def test_no_number_is_typed_by_hand():
    """All come from figures.json, but names, scales and what was chosen."""
    text = re.sub(r"<head>.*?</head>|<svg.*?</svg>|<code.*?</code>", "", SOURCE, flags=re.S)
    text = re.sub(r'<table class="facts">.*?</table>|<form.*?</form>', "", text, flags=re.S)
    text = re.sub(r'<p class="source">.*?</p>|<a href="https?:.*?</a>', "", text, flags=re.S)
    text = re.sub(r"<[^>]*>", " ", text)
    text = re.sub(r"GPT-2s?|Gemma 4 31B|gpt-oss-20b|Does a 7B tie|saves 50M", "", text)
    typed = re.findall(r"(?<![\w-])\d[\d.,]*\d|(?<![\w-])\d", text)
    assert set(typed) <= CHOSEN


@pytest.mark.parametrize("name", list(Section(SOURCE).words))
def test_a_section_has_at_most_120_words(words, name):
    assert len(words[name]) <= 120


def test_each_question_has_an_address_and_a_source():
    ids = "interview why-not-the-inverse gradient why-sqrt-d lm-head-not-in-parameters "
    ids += "train-only-the-head zero-or-copy does-a-7b-tie is-it-a-regulariser"
    articles = re.findall(r'<article id="([^"]*)">(.*?)</article>', SOURCE, flags=re.S)
    assert [name for name, _ in articles] == ids.split()
    for name, text in articles:
        assert f'<h3><a href="#{name}">' in text
        assert "data-figure" in text or "<code>" in text
        assert '<p class="source">' in text


def test_every_link_inside_the_page_has_its_place():
    targets = set(re.findall(r'\bid="([^"]*)"', SOURCE))
    for link in re.findall(r'href="#([^"]*)"', SOURCE):
        assert link in targets


SOURCES = re.findall(r"<code>([\w/.]+\.(?:py|js)): ([\w, ]+)</code>", SOURCE)


@pytest.mark.parametrize(("path", "names"), SOURCES, ids=[f"{p}-{n}" for p, n in SOURCES])
def test_each_source_has_what_is_named(path, names):
    file = ROOT / path
    if path.endswith(".js"):
        file = article.ARTICLE / path
    text = file.read_text(encoding="utf-8")
    for name in names.split(", "):
        assert re.search(rf"(def|function|const) {name}\b|[{{ ]{name}[,}}]", text), name


def test_the_quoted_line_and_the_files_and_commands_exist():
    (quoted,) = re.findall(r'<code class="quoted">(.*?)</code>', SOURCE)
    assert quoted in (ROOT / "scripts" / "tied.py").read_text(encoding="utf-8")
    for path in re.findall(r"<code>(scripts/[\w/.]+\.(?:md|jsonl))</code>", SOURCE):
        assert (ROOT / path).exists(), path
    for command in re.findall(r"<code>tiedgpt (\w+)", SOURCE):
        assert command in COMMANDS


# What the text says of the figures


def number(name):
    """The number, or the mean before an interval."""
    return float(TEXTS[name].replace(MINUS, "-").replace(",", "").split(" ")[0].rstrip("MB%"))


def interval(name):
    low, high = re.findall(r"\[(.*), (.*)\]", TEXTS[name].replace(MINUS, "-"))[0]
    return float(low), float(high)


def streams_of(head):
    """The words of each place in the residual stream: each (token, probability, follows)."""
    words = FIGURES["words"]
    return [words[name] for name in words if name.startswith(f"{head}.stream.")]


def test_what_the_text_says_holds():
    assert interval("cost.w64-best")[1] < interval("cost.w64")[0]  # a better start costs less
    assert interval("cost.longer-two-layers")[0] > 0
    assert number("cost.longer-two-layers") < number("cost.longer")  # "with two layers less"
    assert interval("cost.parameters")[1] < 0  # "the tied one is ahead"
    assert interval("cost.parameters-2048")[1] < 0  # "the tied one is ahead"; > 0.02 was predicted
    assert interval("cost.parameters-2048-tuned")[1] < 0  # at a better rate for untied, too
    # "The table alone is not nearer to the bigrams than a blind guess", which needs all 808 tokens
    assert number("stop.raw.nats") == pytest.approx(number("stop.guess.nats"), abs=0.01)
    assert number("stop.mlp0.nats") < number("stop.counts.nats") < number("stop.normed.nats")
    assert number("marks.tied.normed") < 0.1 < 1 < number("marks.untied.normed")
    assert number("marks.untied.normed") < number("marks.tied.mlp0")
    assert number("stop.mlp0.nats") + 1 < number("mlps.tied.other")  # only the first MLP
    assert number("mlps.untied.model") + 1 < number("mlps.untied.without")
    assert number("mlps.tied.model") + 1 < number("mlps.tied.without")
    assert number("stop.raw.asymmetry") == 0
    assert interval("rows.tied")[1] < interval("rows.untied")[0]
    assert interval("rows.tied.others")[1] < interval("rows.tied")[1]  # it knows no more
    assert number("rows.seeds.tied") < 0.1 < 0.5 < number("rows.seeds.untied")
    assert number("cost.attention") > number("cost.no-layers") > number("cost.mlp")
    assert interval("cost.one-rate-training")[0] > 0
    assert interval("cost.one-rate")[0] < 0 < interval("cost.one-rate")[1]  # "changes it by"
    assert interval("cost.tenth")[0] > 0
    knows_untied, knows_tied = (
        [row["length"] for row in group["rows"]] for group in FIGURES["knows"]
    )
    follows_by_E, precedes_by_E, follows_by_U, precedes_by_U = knows_untied
    assert follows_by_E > 2 * precedes_by_E  # "the embedding knows what follows"
    assert precedes_by_U > 2 * follows_by_U
    assert min(knows_tied) > 0.6  # "both"
    assert knows_tied[0] < follows_by_E - 0.05  # "of what follows it knows less"
    for group in FIGURES["mlps"]:
        none, first, *others = [row["length"] for row in group["rows"]]
        assert first < min(none, *others) / 2
    assert interval("init.copy")[0] < 0 < interval("init.copy")[1]
    assert interval("init.zeros")[0] > 0
    tied, untied = ([words[0] for words in streams_of(head)] for head in ("tied", "untied"))
    assert tied[0][0] == " my"  # "it begins at the word itself"
    assert tied[-1][2]
    assert untied[0][0] != " my"
    assert number("toy.untied") == 0
    assert number("toy.untied") < number("toy.tied") < number("toy.start")
    assert number("toy.guess") == pytest.approx(number("toy.tied"), abs=0.03)  # "hardly less"
    assert number("toy.untied") < number("toy.untied.start")  # "solve" has something to do


def test_the_sizes_are_those_of_the_five_models():
    (gpt2, _) = FIGURES["shares"]
    assert {row["name"] for row in gpt2["rows"]} == set(MODELS)


def test_a_filled_arrow_is_drawn_on_the_hollow_one_and_is_smaller(page):
    """So both are seen where a word lies at the hollow arrow of the next."""
    (untied,) = re.findall(r'<svg id="untied-plane".*?</svg>', page, flags=re.S)
    kinds = re.findall(r'<g class="(\w+)">.*?r="(\d+)"', untied)
    assert kinds == [("hollow", "15")] * 3 + [("arrow", "10")] * 3


@pytest.mark.parametrize("text", ["nowhere.txt", "weights/sonnets.txt", "weights"])
def test_the_page_is_not_made_with_another_text(text, monkeypatch, capsys):
    """The cost of rounding would be that of the other text."""
    pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")
    import make_page

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["make_page.py", text])
    with pytest.raises(SystemExit) as exit_info:
        make_page.main()
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert text in message


@pytest.mark.slow
def test_the_figures_are_current():
    """If they are not: python scripts/make_page.py. A last digit may differ between processors."""
    pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")
    from page.figures import all_parts
    from tying_experiment import REGISTERED, RUNS, read_lines

    results = read_lines(RUNS) | read_lines(REGISTERED)
    fresh = json.loads(json.dumps(all_parts(results)))
    rounding = {name: text for name, text in TEXTS.items() if name.startswith("rounding.")}
    fresh["texts"] |= rounding
    assert fresh.keys() == FIGURES.keys()
    assert fresh["texts"].keys() == TEXTS.keys()
    for name in fresh:
        same(fresh[name], FIGURES[name], name)


def same(new, old, name):
    """Numbers differ by a hundredth at most; in a text, each number."""
    assert type(new) is type(old), name
    if isinstance(new, dict):
        assert new.keys() == old.keys(), name
        for key in new:
            same(new[key], old[key], f"{name}.{key}")
    elif isinstance(new, list):
        assert len(new) == len(old), name
        for place in range(len(new)):
            same(new[place], old[place], name)
    elif isinstance(new, float):
        assert new == pytest.approx(old, rel=0.02, abs=0.011), name
    elif isinstance(new, str):
        numbers = r"\d[\d,]*\.?\d*"
        assert re.sub(numbers, "0", new) == re.sub(numbers, "0", old), name
        for one, other in zip(re.findall(numbers, new), re.findall(numbers, old), strict=True):
            assert float(one.replace(",", "")) == pytest.approx(
                float(other.replace(",", "")), rel=0.01, abs=0.011
            ), name
    else:
        assert new == old, name


# The pictures' own arithmetic, in JavaScript


def test_the_scores_and_the_nats_of_the_arrows():
    W_E = np.array(FIGURES["toy"]["tied"])
    P = np.array(FIGURES["toy"]["text"])
    script = """
        const scores = scoresOf(input.W_E, input.W_E)
        print({scores, nats: natsFrom(scores, input.P)})
    """
    answer = run_node(script, ELEMENTS, "drag.js", W_E=W_E.tolist(), P=P.tolist())
    np.testing.assert_allclose(answer["scores"], W_E @ W_E.T, atol=1e-12)
    nats = (P * (np.log(P) - log_softmax(W_E @ W_E.T))).sum(axis=1).mean()
    assert answer["nats"] == pytest.approx(nats, abs=1e-12)


def test_the_calculator_reads_numbers():
    numbers = {
        "50,000": 50_000,
        "7B": 7e9,
        "7e9": 7e9,
        "70.6 b": 70.6e9,
        "124M": 124e6,
        "1k": 1000,
        "0.5B": 5e8,
        "1,500,000": 1_500_000,
        "50_257": 50_257,
        "1.5B": 1.5e9,
        "": None,
        "1,5B": None,  # not 15B
        "50.000": None,  # not 50
        "1.500.000": None,
        "1.125B": 1.125e9,
        " 2.5t ": 2.5e12,
        "12,345,678": 12_345_678,
        "1e3k": 1e6,
        "1,5": None,
        "50 257": None,
        "50,257k": None,
        "1,50,000": None,
        "-1": None,
        "B": None,
        "1e": None,
        "NaN": None,
        "1 2 3x": None,
    }
    script = "print(input.texts.map(readNumber))"
    answer = run_node(script, ELEMENTS, "cost.js", texts=list(numbers))
    assert answer == list(numbers.values())
    numbers = {1: "1", 999: "999", 1000: "1.0K", 5e4: "50.0K", 204.8e6: "204.8M", 7e9: "7.0B"}
    numbers |= {1.5e12: "1.5T", 2e15: "2000.0T"}
    shown = run_node("print(input.ns.map(short))", ELEMENTS, "cost.js", ns=list(numbers))
    assert shown == list(numbers.values())


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((50_257, 768, 163_037_184), "If yours is the untied model, it is 23.7 %."),
        (
            (50_257, 768, 124e6),
            "38.6M numbers. If yours is the tied model, a second table would be 23.7 %",
        ),
        ((50_257, 768, 124e6), "If yours is the untied model, it is 31.1 %."),
        (
            (50_257, 768, 50e6),
            "a second table would be 43.6 % of the untied one. It is not the untied",
        ),
        ((50_257, 768, 1e6), "One table of 38.6M numbers is more"),
        ((1, 1, 1e15), "1 numbers. If yours is the tied model"),
        ((10, 10, 99), "One table of 100 numbers is more than the whole model."),
        (
            (10, 10, 100),
            "100 numbers. If yours is the tied model, a second table would be 50.0 % of the "
            "untied one. It is not the untied model, which has two tables and is larger.",
        ),
        (
            (10, 10, 200),
            "100 numbers. If yours is the tied model, a second table would be 33.3 % of the "
            "untied one. If yours is the untied model, it is 50.0 %.",
        ),
        ((1e15, 1, 1e15), "1000.0T numbers. If yours is the tied model"),
        (
            (1e8, 1e7, 1e16),
            "Three numbers are needed, such as 50,000 or 1.5B, of at most 1000T. "
            "A comma groups three digits; a fraction has a point.",
        ),
        ((2, 1e16, 1e16), "Three numbers"),
        ((2, 0.5, 7e9), "Three numbers"),
        ((1e308, 1e308, 7e9), "Three numbers"),
        ((0.1, 0.1, 1), "Three numbers"),
        ((0, 768, 7e9), "Three numbers"),
        (("NaN", 768, 7e9), "Three numbers"),
        (("NaN", 768, 7e9), "a fraction has a point"),
    ],
)
def test_the_calculator_says_no_number_that_is_none(numbers, sentence):
    script = "print(sayShare(...input.numbers.map(Number)))"
    assert sentence in run_node(script, ELEMENTS, "cost.js", numbers=numbers)


def test_how_many_tokens_are_left_open():
    script = "print(input.counts.map(shortCount))"
    texts = {1: "1.0", 2.66: "2.7", 12.4: "12", 143.2: "143", 5.96e2: "596"}
    assert run_words(script, "rows.js", counts=list(texts)) == list(texts.values())


def test_a_share_that_is_not_0_is_not_written_as_0():
    script = "print(input.shares.map(share => percent(share, TENTHS_BELOW)))"
    texts = {0: "0 %", 0.0001: "<0.1 %", 0.0005: "0.1 %", 0.0095: "1 %", 0.99: "99 %"}
    assert run_words(script, shares=list(texts)) == list(texts.values())
    assert [percent(share) for share in texts] == list(texts.values())


def run_words(script, *others, **values):
    """What a script prints that has the functions of words.js and the `tokenizer`."""
    models = article.shipped_models()
    return run_node(
        "const tokenizer = readTokenizer(input.vocabulary, input.merges)\n" + script,
        ELEMENTS,
        "words.js",
        *others,
        vocabulary={token: number for number, token in enumerate(models["tokens"])},
        merges=models["merges"],
        **values,
    )


def test_a_token_that_cannot_be_seen_has_a_name():
    script = "print(input.texts.map(text => shownToken(encode(text, tokenizer)[0], tokenizer)))"
    names = {"\0": "control character", "\t": "control character", "\n": "line break"}
    names |= {"é": "part of a character", " my": "my", "er": "-er", " ": "space"}
    assert run_words(script, texts=list(names)) == list(names.values())


def test_how_often_a_token_occurs():
    """Not "1 times"."""
    script = "print(input.ids.map(id => followersOf(id, {models: {tokenizer}, figures: input})))"
    counts = FIGURES["tokens"]["counts"]
    ids = [counts.index(0), counts.index(1), counts.index(max(counts))]
    never, once, often = run_words(script, ids=ids, tokens=FIGURES["tokens"])
    assert never.startswith("“")
    assert never.endswith("” is not in the text, so the models have learned nothing about it.")
    followed = r"Most often it is followed by “[^”]+” \(1\)\."
    assert re.fullmatch(rf"In the text “[^”]+” occurs once\. {followed}", once)
    assert f"occurs {max(counts):,} times." in often


def test_a_word_that_is_one_token_in_lower_case_is_named():
    script = "print(input.texts.map(text => readingOf(tokensOf(text, tokenizer), tokenizer)))"
    queen, lord, name = run_words(script, texts=["Queen", "lord", "Bolingbroke"])
    assert queen.startswith("These are 3 tokens")
    assert queen.endswith("In lower case, “queen” is one token.")
    assert lord == "“lord” is one token."
    assert "lower case" not in name
    script = "print([6, 7].map(n => readingOf(encode(' my'.repeat(n), tokenizer), tokenizer)))"
    six, seven = run_words(script)
    names = "“my” “my” “my” “my” “my”"
    assert six == f"These are 6 tokens: {names} “my”. A table sees one: the last, “my”."
    assert seven == f"These are 7 tokens: … {names}. A table sees one: the last, “my”."


def test_the_command_line_reads_what_the_calculator_reads():
    texts = [
        "50,257",
        "1,500,000",
        "7B",
        "1.5B",
        "7e9",
        "50_257",
        "1,5B",
        "50.000",
        "1.500.000",
        "1.125B",
        "1,5",
        "50 257",
        "50,257k",
    ]
    read = []
    for text in texts:
        try:
            read.append(whole_number(text))
        except ArgumentTypeError:
            read.append(None)
    assert run_node("print(input.texts.map(readNumber))", ELEMENTS, "cost.js", texts=texts) == read


def test_a_word_is_read_as_inside_a_sentence():
    script = """
        const textsOf = ids => ids.map(id => tokenText(id, tokenizer))
        print(input.texts.map(text => textsOf(tokensOf(text, tokenizer))))
    """
    # "the" is one token with the space and without.
    answer = run_words(script, texts=["my", "my lord", "the", "ROMEO", ":", "Romeo"])
    assert answer[:5] == [[" my"], [" my", " lord"], [" the"], ["ROMEO"], [":"]]
    assert "".join(answer[5]) == " Romeo"
