"""What the laboratory shows of the server's answers, and what it asks, in Chromium.

The answers are made up: with zeros, negative numbers, nulls, and numbers of two digits. The prompt
is "\\n", " to", "be", "?", of which the panels show the last three tokens. The model "a" is tied.
The model "b" is untied and has more heads and layers than one digit counts. The text "one" has one
token, and with the text "all kept" sampling drops none.
"""

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.browser import BROWSER, expect, sync_playwright

from tiedgpt.explore.panels import PANELS
from tiedgpt.explore.server import PAGE

pytestmark = BROWSER

URL = "http://localhost/"  # playwright answers in its place


def floats(numbers):
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


def token(id, text, probability=0, drawn=0, logit=0, **more):
    numbers = {"probability": probability, "drawn": drawn, "logit": logit}
    return {"id": id, "token": text, **numbers, **more}


LINE, TO, BE, END, PADDING = map(token, (1, 3, 4, 7, 0), ("\n", " to", "be", "?", None))
LONG = token(12, "incomprehensible", 0.5, 0.5)
ROWS = [
    [
        token(1, "\n", 0.75, 0.9, 2.5),
        token(4, "be", 0.08, 0.1, -1.25),
        token(0, None, 0.0006, 0, 10),
        token(9, "", 0, 0, -0.001),
        token(3, " to", 0.0004, 0, -9),
    ],
    [token(5, "a\tb\rc", 0.0996, 0.3), token(7, "?", 0.0994, 0.2), token(1, "\n", 0.05)],
]
TEXT = {
    "counts": [[1, 7, 3], [1234, 0, 5], [0, 9, 2]],
    "percent": [[90, 3.4, 0], [45.6, 0, 80], [0, 99, 50]],
}
ROWS_OF_A = floats([1, 0, 2, -1, 0.5, 0.25])
COLUMNS_OF_B = floats([-1, -2, -3, 0, 0.5, 1, 0.1, 0.2, 0.3])
SCORES = [
    {"A": [[1, 2, -8], [2.00001, 0, 0.001], [-8, 0.004, -0.04]]}
    | {"W_E": ROWS_OF_A, "W_U": ROWS_OF_A},
    {"A": [[0, 1, 2], [-3, 0.25, 5], [6, -7, 100]]}
    | {"W_E": floats([1, 2, 3, 4, 5, 6, 7, 8, 9]), "W_U": COLUMNS_OF_B},
]


def symmetry(measured, **paths):
    names = ("asymmetry", "self_prediction")
    paths = {path: dict(zip(names, numbers, strict=True)) for path, numbers in paths.items()}
    return {"paths": paths, "measured": measured, "text": 0}


SYMMETRY = [
    symmetry(5000, raw=(0, 0.9), normed=(0.3, 0.5), mlp0=(0.71, 0.44), model=(1.8, 0)),
    symmetry(512, raw=(1.2, 0.0006), normed=(1.41, 0.02), mlp0=(0.01, 1)),
]
HALF_REPAIRED = symmetry(12000, raw=(0.01, 0.02), mlp0=(1.2, 0.01))
NEAREST = {
    "token": END,
    "W_E": [{**TO, "cosine": 0.5}, {**LINE, "cosine": -0.125}],
    "W_U": [{**PADDING, "cosine": 0.25}, {**BE, "cosine": -0.001}],
}
LENS = [  # a layer has the likeliest tokens for each token of the prompt
    [
        [[token(3, " to", 0.9), PADDING], [token(4, "be", 0.5)], [token(3, " to", 1)]],
        [[token(4, "be", 0.0996)], [token(4, "be", 0.0994)], [token(7, "?", 0.0004)]],
        [[END], [token(4, "be", 0.01)], [token(4, "be", 0.3)]],
    ],
    [[[token(3, " to", 1)], [token(4, "be", 1)], [token(7, "?", 1)]]],
]
CHANGE = [token(1, "\n", 0.75, without=0.25), token(4, "be", 0.08, without=1)]
ABLATED = {"tokens": [token(4, "be", 0.2, rank=2)]}
GRADIENT = {
    "rows": [
        {**TO, "embed": 0.16, "head": 0.04, "cosine": -0.5},
        {**BE, "embed": 0.01, "head": 0.01, "cosine": 0},
        {**END, "embed": 0.00001, "head": 0, "cosine": 0},
        {**LINE, "embed": 0, "head": 0.64, "cosine": 0.25},
        {**PADDING, "embed": 0, "head": 0.16, "cosine": 0},
    ],
    "reached": [1, 5000],
    **{"loss": 1.5, "embed": 3, "head": 4, "cosine": -0.1234},
}
WORDS = [
    {**TO, "probability": 0.25, "bits": 2, "rank": 1},
    {**LINE, "probability": 0.0001, "bits": 13.3, "rank": 1200},
]
GENERATED = [
    [*WORDS, {"end": "length", "bits_per_token": 7.65}],
    [WORDS[0], {"end": "end of text", "bits_per_token": 0}],
]
SOLVED = [{"scale": 0.125, "head": 1.5, "rank": 0}, None]
PATHS = ["raw", "normed", "mlp0", "model"]
OF_A = {"n_ctx": 8, "n_embd": 2, "n_layer": 2, "n_head": 2, "vocab_size": 5000, "parameters": 999}
OF_B = {"n_ctx": 6, "n_embd": 3, "n_layer": 12, "n_head": 11, "vocab_size": 12000}
KEYWORDS = "and def else for from if in is lambda None not or raise return True while with"
CODE = 'if x:  # "a"\n    parameters["wte.weight"].T + "b"\n"""def\n"c\\"d" + ifs + 1\n' + KEYWORDS
SOURCE = {"file": "f.py", "line": 9, "text": CODE}
OTHER_SOURCE = {"name": "g", "file": "g.py", "line": 99, "text": "x"}
START = {
    "models": [
        {"name": "a", "heads": ["tied"], "paths": PATHS, **OF_A},
        {"name": "b", "heads": ["untied", "tied"], "paths": PATHS[:3], **OF_B}
        | {"parameters": 204_800_000},
    ],
    "corpus": "a text",
    "prompts": ["to\nbe", "or"],
    "sampling": [
        {"name": "temperature", "default": 1, "help": "0: greedy", "min": 0, "whole": False},
        {"name": "top_k", "default": None, "help": "of k", "min": 1, "max": 9, "whole": True},
        {"name": "greedy", "default": False, "help": "take it"},
    ],
    "sources": {panel: [{"name": "f", **SOURCE}, OTHER_SOURCE] for panel in PANELS},
}


def parts(removed, n_layer, n_head, **_):
    """Each part has a number of its own."""
    of_block = ["attn.{}.head." + str(head) for head in range(n_head)]
    of_block += ["attn.{}.bias", "mlp.{}", "mlp.{}.bias"]
    names = [part.format(layer) for layer in range(n_layer) for part in of_block]
    values = {name: n / 100 for n, name in enumerate(["wte", "wpe", *names, "ln_f.bias"])}
    values |= {"mlp.0": -4, "attn.0.bias": -0.001}
    answer = {"tokens": [token(4, "be", 0.08, logit=-1.25, rank=1200)], "parts": values}
    if removed:
        return answer | {"likeliest": [BE], "ablated": ABLATED, "change": CHANGE}
    return answer | {"likeliest": [LINE, END]}


def patterns(heads, T):
    """The weight of the second token for itself counts the heads, in fiftieths."""
    shares = [n % 50 / 50 for n in range(heads)]
    weights = [[[1, 0, 0], [1 - x, x, 0], [0.001, 0.004, 0.995]] for x in shares]
    return {"patterns": floats([[row[:T] for row in pattern[:T]] for pattern in weights])}


def answer(question, text="", removed=(), side=0, head="", place=None, **_):
    """What the server would answer: one or several objects."""
    if text == "refused" or removed == ["mlp.99"]:
        return [{"error": f"no part {removed[0] if removed else text}"}]
    model = START["models"][side]
    tokens = [LONG] if text == "one" else [LINE, TO, BE, END]
    shown = tokens[-3:]
    T = len(shown)
    prompt = {"text": "\n tobe?", "tokens": tokens, "place": T if T > 1 else 0}
    if place is not None:
        prompt["place"] = place
    rows = [LONG] if text == "one" else ROWS[side][: 2 if text == "all kept" else 5]
    scores = SCORES[side] | {"A": [row[:T] for row in SCORES[side]["A"][:T]]}
    layers = [{"positions": layer[:T]} for layer in LENS[side]]
    answers = {
        "start": START,
        "next": {**prompt, "rows": rows, "kept": [1500, 9000][side], "kept_probability": 0.83},
        "path": {"tokens": shown, "text": None if text in ("no corpus", "one") else TEXT, **scores},
        "symmetry": HALF_REPAIRED if side == 1 and head == "tied" else SYMMETRY[side],
        "nearest": NEAREST,
        "lens": {"tokens": shown, "layers": layers},
        "parts": parts(removed, **model) if question == "parts" else None,
        "attention": {"tokens": shown, **patterns(model["n_layer"] * model["n_head"], T)},
        "gradient": {**GRADIENT, "read": [4, 3][side], "absent": [2, 0][side]},
        "solve": {"missing": SOLVED[side]},
    }
    return GENERATED[side] if question == "generate" else [answers[question]]


@pytest.fixture
def instead(lab):
    """Answers in place of the made-up ones, by question; with None, there is no server."""
    lab.instead.clear()
    yield lab.instead
    lab.instead.clear()


class Labs:
    """Pages of the laboratory in one browser."""

    def __init__(self, chromium):
        self.chromium = chromium

    def open(self, instead, fragment=""):
        """The page, when it is drawn or says why it is not. Its reader writes 1.200 for 1,200."""

        def reply(route):
            name = route.request.url.removeprefix(URL)
            if route.request.method == "GET":
                return route.fulfill(path=PAGE / ("page.html" if name == "lab" else name))
            if name in instead:
                lines = instead[name]
            else:
                lines = answer(name, **route.request.post_data_json)
            if lines is None:
                return route.abort()
            return route.fulfill(body="\n".join(map(json.dumps, lines)))

        page = self.chromium.new_page(viewport={"width": 1300, "height": 900}, locale="de-DE")
        page.set_default_timeout(20_000)
        page.route("**/*", reply)
        page.goto(URL + "lab" + fragment)
        page.instead = instead
        return page


@pytest.fixture(scope="module")
def labs():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield Labs(chromium)
        chromium.close()


@pytest.fixture(scope="module")
def lab(labs):
    """The page of the laboratory, for all tests of this module."""
    page = labs.open(instead={})
    page.wait_for_selector("body[data-ready]")
    return page


# Go to an address as Back and Forward do, and wait until its panel is drawn: it is drawn once more,
# after what is being drawn.
GO = """async address => {
    history.pushState(null, "", address)
    dispatchEvent(new PopStateEvent("popstate", {state: null}))
    const nextFrame = () => new Promise(requestAnimationFrame)
    await nextFrame()
    await nextFrame() // the page knows that the panel is in view
    const {changed, drawVisible, state} = await import("./state.js")
    changed(null, state.panel === "switch" ? "next" : state.panel)
    await drawVisible()
}"""


def go(lab, address):
    lab.evaluate(GO, address)


# The texts of elements, or an attribute of each, or a property of its style.
READ = r"""(nodes, name) => nodes.map(node => {
    if (name === "text") return node.innerText ?? node.textContent
    const ofStyle = node.style.getPropertyValue(name).replace(/(\.\d{3})\d+/, "$1")
    return node.getAttribute(name) ?? (ofStyle || "-")
}).map(text => text.trim().replace(/\s+/g, " "))"""
PATIENCE = 50  # tenths of a second


def read_table():
    """drawn.txt has, for each address, elements, what is read of each (or -), and the values."""
    table = {}
    for line in Path(__file__).with_name("drawn.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            checks = table[line] = []
        elif line.startswith(" " * 8):
            checks[-1] += f" {line.strip()}"
        elif line:
            checks.append(line.strip())
    return table


TABLE = read_table()


@pytest.mark.parametrize("address", TABLE)
def test_what_a_reader_sees(lab, address):
    go(lab, address)
    for check in TABLE[address]:
        selector, name, values = re.fullmatch(r"(.*?) \(([\w-]+)\) ?(.*)", check).groups()
        for _ in range(PATIENCE):
            found = " | ".join(lab.locator(selector).evaluate_all(READ, name))
            if found == values:
                break
            lab.wait_for_timeout(100)
        assert found == values, selector


def asked(lab, question, act, **fields):
    """act() asks this question, with these fields."""

    def is_asked(request):
        if request.url != URL + question:
            return False
        sent = request.post_data_json
        return {name: sent.get(name) for name in fields} == fields

    with lab.expect_request(is_asked):
        act()


def test_what_a_click_asks_and_writes_into_the_address(lab):
    def click(address, control, question, query, **fields):
        go(lab, address)
        asked(lab, question, lambda: lab.click(control), **fields)
        expect(lab).to_have_url(re.compile(rf"#\w+{re.escape(query)}$"))

    click("#next", "#bars .row >> nth=1", "next", "?ids=1_3_4_7_4", ids=[1, 3, 4, 7, 4])
    click("#next", "#strip button >> nth=0", "next", "?place=0", ids=None, place=0)
    click("#next?place=0", "#strip button >> nth=3", "next", "", place=None)
    drawn = {"side": 1, "n": 1, "seed": 1, "top_k": 3}
    draw = "text=Draw one >> nth=1"
    click("#next?top_k=3", draw, "generate", "?ids=1_3_4_7_3&seed=2&top_k=3", **drawn)
    expect(lab.locator("#seed")).to_have_value("2")
    of_b = {"side": 1, "head": "tied"}
    click("#next?copy=1", "#bars .switch button >> nth=0", "next", "?heads=tied_tied", **of_b)
    click("#next?place=1&token=9", "#bars .row >> nth=0", "next", "?ids=1_3_1", ids=[1, 3, 1])
    click("#next", "#examples button >> nth=1", "next", "?text=or", text="or")
    click("#next?ids=1", "#examples button >> nth=0", "next", "", text="to\nbe", ids=None)
    click("#path?heads=tied_tied", "#solve", "solve", "?heads=tied_tied", **of_b)
    click("#path", "#paths button >> nth=3", "path", "?path=model", path="model")
    removed = "#parts?head=1&removed=mlp.1_mlp.0"
    query = "?head=1&removed=mlp"
    click(removed, "[data-key='mlp.1']", "parts", query + ".0", removed=["mlp.0"])
    click(removed, "[data-key='mlp.0']", "parts", query + ".1", removed=["mlp.1"])
    head = "attn.1.head.0"
    added = {"removed": ["mlp.1", "mlp.0", head]}
    click(removed, f"[data-key='{head}']", "parts", f"{query}.1_mlp.0_{head}", **added)
    click(removed + "&token=1", "#putback", "parts", "?head=1&token=1", removed=[], token=1)
    of_b["head"] = "untied"
    other = "#parts .which button >> nth=1"
    query = "?side=1&head=1&removed=mlp.0"
    click("#parts?copy=1&head=1&removed=mlp.0", other, "parts", query, **of_b)


def test_what_the_switch_writes_into_the_address(lab):
    tied, untied = lab.locator("#turn button").all()
    for address, turn, query in (
        ("#switch", untied, r"\?copy=1"),
        ("#switch?copy=1", tied, ""),
        ("#switch?side=1", tied, r"\?heads=tied_tied&side=1"),
        ("#switch?heads=tied_tied&side=1", untied, r"\?side=1"),
    ):
        go(lab, address)
        turn.click()
        expect(lab).to_have_url(re.compile(f"#switch{query}$"))
        expect(turn).to_have_attribute("aria-pressed", "true")


def test_a_head_that_is_chosen_is_in_the_answer_already(lab):
    go(lab, "#attention")
    asked = []
    lab.on("request", lambda request: asked.append(request.url))
    lab.click("#heads button >> nth=1")
    expect(lab.locator("#attnbox h3")).to_have_text("block 0, head 1")
    pressed = lab.locator("#heads [aria-pressed=true]")
    expect(pressed).to_have_attribute("title", "block 0, head 1")
    expect(lab.locator("#attnbox tbody tr").nth(1)).to_have_text("be.98.02")
    expect(lab).to_have_url(re.compile(r"\?layer=0&head=1$"))
    assert URL + "attention" not in asked


def test_what_an_address_asks(lab):
    def read(address, question, **fields):
        asked(lab, question, lambda: go(lab, address), **fields)

    parts = ["mlp.0", "attn.0.head.1"]
    ids = {"ids": [3, 4, 1], "place": 0}
    read("#parts?ids=3_4_1&place=0&removed=mlp.0_attn.0.head.1", "parts", removed=parts, **ids)
    read("#parts?token=x&side=9&removed=", "parts", side=0, head="tied", removed=[], token=None)
    read("#next?heads=untied_x", "next", side=1, head="untied")
    read("#next?heads=untied_tied", "next", side=0, head="tied")
    read("#path?side=1&path=model", "path", path="raw")
    read("#next?text=a?+b%3F&greedy=true&top_k=0", "next", text="a? b?", greedy=True, top_k=0)
    read("#next?greedy=false", "next", text="to\nbe", greedy=None, temperature=None)


def test_what_a_setting_asks(lab):
    """An empty one has its default."""
    go(lab, "#next?seed=5")
    lab.locator("#sampling").evaluate("box => { box.open = true }")
    names = ["temperature", "top k", "greedy", "seed"]
    assert lab.locator("#controls label").all_text_contents() == names
    asked(lab, "next", lambda: lab.fill("#temperature", "0"), temperature=0)
    asked(lab, "next", lambda: lab.fill("#temperature", ""), temperature=None)
    asked(lab, "next", lambda: lab.fill("#temperature", "2.5"), temperature=2.5)
    asked(lab, "next", lambda: lab.check("#greedy"), greedy=True)
    asked(lab, "next", lambda: lab.uncheck("#greedy"), greedy=None)
    fields = {"head": "untied", "n": 40, "temperature": 2.5}
    asked(lab, "generate", lambda: lab.click("#write"), side=1, seed=5, **fields)
    expect(lab.locator("body")).to_have_attribute("data-written", "2,1")
    lab.fill("#seed", "")
    asked(lab, "generate", lambda: lab.click("#write"), side=1, seed=1, **fields)
    typed = {"text": "a", "ids": None, "place": None}
    go(lab, "#next?ids=1_3&place=0&token=3&temperature=0&greedy=true")
    expect(lab.locator("#temperature")).to_have_value("0")
    expect(lab.locator("#greedy")).to_be_checked()
    asked(lab, "next", lambda: lab.fill("#prompt", "a"), **typed)
    expect(lab).to_have_url(re.compile(r"#next\?text=a&temperature=0&greedy=true$"))
    go(lab, "#parts?head=1")
    asked(lab, "parts", lambda: lab.locator("#token").select_option("7"), token=7, removed=[])
    expect(lab).to_have_url(re.compile(r"#parts\?head=1&token=7$"))


def test_what_is_written(lab):
    go(lab, "#next")
    lab.click("#write")
    notes = lab.locator("#written .note")
    of_a = "2 tokens, to the length; mean surprisal 7.65 bits"
    expect(notes).to_have_text([of_a, "1 tokens, to the end of text; mean surprisal 0.00 bits"])
    words = lab.locator("#written .side:first-child .w")
    assert words.all_text_contents() == [" to", "\n"]
    assert words.evaluate_all(READ, "title") == [
        f"{chance}. Go back to the text before it."
        for chance in ("25 %, rank 1", "<0.1 %, rank 1,200")
    ]
    assert words.evaluate_all(READ, "aria-label") == ["·to, 25 %", "⏎, <0.1 %"]
    assert words.evaluate_all(READ, "--bits") == ["2.4", "9"]
    expect(words.last).to_have_class("w nl")
    pages = lab.locator("#written .page")
    assert pages.evaluate_all(READ, "aria-label") == ["Text by a", "Text by b"]
    expect(lab.locator("#written .given")).to_have_text(["\n tobe?"] * 2, use_inner_text=False)
    # Tab stops at the first word of each text, and not at the text.
    expect(lab.locator("#written .w[tabindex='0']")).to_have_text([" to", " to"])
    expect(lab.locator("#written .page[tabindex]")).to_have_count(0)
    expect(lab.locator("#writtennote")).to_be_visible()
    expect(lab.locator("#write")).to_have_text("Write 40 tokens")
    expect(lab.locator("#live")).to_have_text("Wrote 2 and 1 tokens")
    asked(lab, "next", lambda: words.last.press(" "), ids=[1, 3, 4, 7, 3])
    go(lab, "#next")
    lab.click("#write")
    asked(lab, "next", words.last.click, ids=[1, 3, 4, 7, 3])
    go(lab, "#next?place=1")
    lab.click("#write")
    expect(lab.locator("#live")).to_have_text("Wrote 2 and 1 tokens")
    # Words that are selected, to copy them, are not clicked. Another key is not Enter.
    words.first.evaluate("word => { getSelection().selectAllChildren(word); word.click() }")
    words.first.press("a")
    lab.evaluate("getSelection().removeAllRanges()")
    lab.wait_for_timeout(250)  # a change would be in the address
    expect(lab).to_have_url(re.compile(r"#next\?place=1$"))
    asked(lab, "next", lambda: words.last.press("Enter"), ids=[1, 3, 3])


def test_a_text_that_has_ended_or_has_no_answer_is_not_written(lab, instead):
    go(lab, "#next")
    instead["generate"] = [{"end": "end of text", "bits_per_token": 0}]
    draw = lab.locator("text=Draw one").first
    asked(lab, "generate", draw.click)
    lab.click("#write")
    notes = lab.locator("#written .note")
    ended = "0 tokens, to the end of text; mean surprisal 0.00 bits"
    expect(notes).to_have_text([ended] * 2)
    expect(lab.locator("#seed")).to_have_value("1")
    expect(lab).to_have_url(re.compile("#next$"))
    problem = lab.locator("#problem")
    expect(problem).to_be_hidden()
    instead["generate"] = [{"error": "no words"}]
    draw.click()
    expect(problem).to_have_text("no words")
    instead["generate"] = [WORDS[0], {"error": "no more words"}]
    lab.click("#write")
    expect(notes.first).to_have_text("1 tokens; stopped")
    expect(notes.last).to_contain_text("tokens; stopped")
    expect(problem).to_have_text("no more words")
    expect(lab.locator("#written .w[tabindex='0']").first).to_have_text(" to")
    expect(lab.locator("#write")).to_have_text("Write 40 tokens")


def test_the_text_of_ids_is_shown_but_not_while_the_reader_types(lab):
    go(lab, "#next?ids=1_3")
    prompt = lab.locator("#prompt")
    expect(prompt).to_have_value("\n tobe?")
    assert lab.evaluate("import('./state.js').then(({state}) => state.text)") == "\n tobe?"
    go(lab, "#next?text=typed")
    expect(prompt).to_have_value("typed")
    prompt.focus()
    row = lab.locator("#bars .row").first
    asked(lab, "next", lambda: row.evaluate("row => row.click()"), ids=[1, 3, 4, 7, 1])
    expect(prompt).to_have_value("\n tobe?")  # the row has taken the focus from the field
    prompt.focus()
    typing = """async () => {
        document.querySelector("#prompt").value = "typing"
        const {set} = await import("./state.js")
        set({ids: [1]}, "next")
    }"""
    asked(lab, "next", lambda: lab.evaluate(typing), ids=[1])
    expect(lab).to_have_url(re.compile(r"#next\?ids=1$"))
    expect(prompt).to_have_value("typing")


def test_a_path_that_one_model_lacks_has_empty_cells(lab):
    """The name of the path, and two cells for each model."""
    go(lab, "#path")
    expect(lab.locator("#repair tr")).to_have_count(5)
    cells = lab.locator("#repair tr").evaluate_all("rows => rows.map(row => row.children.length)")
    assert cells == [5] * 5


def test_what_is_solved(lab):
    go(lab, "#path")
    lab.click("#solve")
    expect(lab.locator("#solvednote")).to_be_visible()
    numbers = ["0.13", "\u2013", "1.50", "\u2013", "0.00", "\u2013"]
    expect(lab.locator("#solved td")).to_have_text(numbers)
    titles = ["nats per token", "a", "b", "scale: gone with one factor for all logits"]
    titles += ["head: gone with the best W_U", "rank: left with the best W_U"]
    assert lab.locator("#solved th").all_text_contents() == titles
    expect(lab.locator("#solve")).to_be_enabled()
    caption = lab.locator("#solved caption")
    assert caption.all_text_contents() == ["What the direct path misses"]


def test_an_error_of_a_part_of_the_direct_path_is_shown_and_it_is_asked_again(lab, labs, instead):
    instead["symmetry"] = [{"error": "not measured"}]
    instead["solve"] = [{"error": "not solved"}]
    page = labs.open(instead, "#path")
    warning = page.locator("#path .warn")
    expect(warning).to_have_text("not measured")
    page.click("#solve")
    expect(page.locator("#solved .warn")).to_have_text("not solved")
    expect(page.locator("#solve")).to_be_enabled()
    instead.clear()
    asked(page, "symmetry", lambda: page.click("#paths button >> nth=1"), side=0, head="tied")
    cells = page.locator("#repair td")
    expect(cells).to_have_count(4 * 4)
    expect(page.locator("#repair .now th")).to_have_text("with ln_f")
    questions = []
    page.on("request", lambda request: questions.append(request.url.removeprefix(URL)))
    page.click("#paths button >> nth=2")  # what is measured is not asked again
    expect(page.locator("#repair .now th")).to_have_text("with the first MLP")
    assert "nearest" in questions
    assert "symmetry" not in questions
    instead["symmetry"] = [symmetry(99, raw=(0, 0.9), mlp0=(0.7, 0.1)) | {"text": None}]
    go(page, "#path?heads=tied_tied")  # of other heads, it is
    sample = "Only in part by the first MLP. Measured on 99 tokens, drawn at random."
    expect(page.locator("#repair .note")).to_have_text([f"a. {sample}", f"b. {sample}"])
    page.close()


def test_an_error_is_shown_until_there_is_an_answer(lab):
    go(lab, "#parts?removed=mlp.99")
    warning = lab.locator("#parts .warn")
    expect(warning).to_have_text("no part mlp.99")
    asked(lab, "parts", lambda: go(lab, "#parts"), removed=[])
    expect(warning).to_be_hidden()
    go(lab, "#next?text=refused")
    problem = lab.locator("#problem")
    expect(problem).to_have_text("no part refused")
    expect(lab.locator("#live")).to_have_text("no part refused")
    stale = lab.locator(".stale")
    expect(stale).to_have_count(3)
    go(lab, "#next")
    expect(problem).to_be_hidden()
    expect(lab.locator("#bars.stale")).to_have_count(0)


def test_a_part_that_is_refused_is_not_asked_again(lab):
    go(lab, "#parts?removed=mlp.99")
    expect(lab.locator("#parts .warn")).to_have_text("no part mlp.99")
    asked(lab, "parts", lambda: lab.click("#strip button >> nth=0"), removed=[], place=0)


def test_only_the_panels_in_view_ask_and_none_of_a_text_that_is_refused(lab):
    go(lab, "#gradient")
    lab.wait_for_timeout(300)
    questions = []
    note = lambda request: questions.append(request.url.removeprefix(URL))  # noqa: E731
    lab.on("request", note)
    asked(lab, "gradient", lambda: lab.fill("#prompt", "a"), text="a")
    assert "next" in questions
    assert not {"path", "lens"} & set(questions)
    questions.clear()  # the gradient is the last panel that asks
    lab.fill("#prompt", "refused")
    expect(lab.locator("#problem")).to_be_visible()
    lab.wait_for_timeout(250)  # other panels would ask in this time
    assert set(questions) == {"next"}
    asked(lab, "gradient", lambda: lab.fill("#prompt", "b"), text="b")
    lab.remove_listener("request", note)


# Type texts at once, one after the other.
TYPE = """texts => {
    for (const text of texts) {
        document.querySelector("#prompt").value = text
        document.querySelector("#prompt").dispatchEvent(new Event("input", {bubbles: true}))
    }
}"""


def test_of_quick_letters_the_newest_text_is_asked(lab):
    """The first is asked at once. The others wait for its answer, and only the last is asked."""
    go(lab, "#next")
    texts = []

    def note(request):
        if request.url == URL + "next":
            texts.append(request.post_data_json["text"])

    lab.on("request", note)
    asked(lab, "next", lambda: lab.evaluate(TYPE, ["x", "xy", "xyz"]), text="xyz", side=1)
    lab.wait_for_timeout(200)
    lab.remove_listener("request", note)
    assert texts == ["x", "x", "xyz", "xyz"]


def test_an_entry_of_the_history_for_each_control_and_none_for_a_very_long_text(labs):
    page = labs.open({}, "#next")  # a browser keeps 50 entries
    page.wait_for_selector("body[data-ready]")
    before = page.evaluate("history.length")
    for text in ("x", "xy"):
        page.evaluate(TYPE, [text])
        expect(page).to_have_url(re.compile(rf"\?text={text}$"))
    assert page.evaluate("history.length") == before + 1  # quick changes are one
    change = """() => {
        const seed = document.querySelector("#seed")
        seed.value = "5"
        seed.dispatchEvent(new Event("input", {bubbles: true}))
    }"""
    page.evaluate(TYPE, ["xyz"])
    page.evaluate(change)
    expect(page).to_have_url(re.compile(r"\?text=xyz&seed=5$"))
    assert page.evaluate("history.length") == before + 2
    page.evaluate(TYPE, ["long" * 7500])
    page.wait_for_timeout(250)
    expect(page).to_have_url(re.compile(r"\?text=xyz&seed=5$"))
    page.go_back()
    expect(page).to_have_url(re.compile(r"\?text=xyz$"))
    page.close()


def test_copying_the_link_waits_for_no_change(lab):
    go(lab, "#next")
    lab.evaluate(TYPE, ["copied"])
    copy = lab.locator("#copy")
    copy.evaluate("copy => copy.click()")
    assert lab.evaluate("location.hash") == "#next?text=copied"
    refusal = "navigator.clipboard.writeText = async () => { throw Error() }"
    lab.evaluate(f"() => {{ {refusal} }}")
    copy.click()
    expect(copy).to_have_text("Copy it from the address bar")
    expect(copy).to_have_text("Copy link")


def test_a_server_that_is_back_draws_what_it_could_not(lab, instead):
    go(lab, "#lens")
    instead |= {"next": None, "lens": None}
    with lab.expect_event("requestfailed", lambda request: request.url == URL + "lens"):
        lab.fill("#prompt", "x")
    stopped = lab.locator("#stopped")
    expect(stopped).to_be_visible()
    expect(lab.locator("#problem")).to_be_hidden()
    instead.clear()
    again = "import('./state.js').then(({drawVisible}) => drawVisible())"
    asked(lab, "lens", lambda: lab.evaluate(again), text="x")
    expect(stopped).to_be_hidden()
    instead["quit"] = [{"error": "not now"}]
    lab.click("#quit")
    expect(lab.locator("#problem")).to_have_text("not now")
    expect(stopped).to_be_hidden()
    go(lab, "#next")
    expect(lab.locator("#problem")).to_be_hidden()


def test_a_page_that_cannot_start_says_why(lab, labs, instead):
    instead["start"] = [{"error": "no models"}]
    page = labs.open(instead)
    expect(page.locator("#loading")).to_have_text("no models")
    expect(page.locator("body[data-ready]")).to_have_count(0)
    page.close()


def test_a_press_that_is_cancelled_does_not_stop_the_drawing(lab):
    go(lab, "#next")
    press = """kind => document.querySelector("#copy").dispatchEvent(
        new PointerEvent(kind, {bubbles: true, button: 0})
    )"""
    lab.evaluate(press, "pointerdown")
    lab.evaluate(press, "pointercancel")
    lab.fill("#prompt", "one")
    expect(lab.locator("#strip")).to_have_text("incomprehensible")


def test_the_address_keeps_its_panel_if_it_is_not_the_reader_who_scrolls(lab):
    go(lab, "#gradient?head=1")
    lab.evaluate("scrollTo(0, 0)")
    lab.wait_for_timeout(100)  # a change would be in the address
    expect(lab).to_have_url(re.compile(r"#gradient\?head=1$"))


@pytest.mark.parametrize("event", ["wheel", "touchmove", "pointerdown", "keydown"])
def test_the_address_follows_the_reader_who_scrolls(lab, event):
    go(lab, "#gradient?head=1")
    lab.evaluate("event => dispatchEvent(new Event(event))", event)
    lab.evaluate("scrollTo(0, 0)")
    expect(lab).to_have_url(re.compile(r"#switch\?head=1$"))


def test_the_pictures_have_the_colours_of_the_scheme(lab):
    go(lab, "#next")
    asked(lab, "next", lambda: lab.emulate_media(color_scheme="dark"))
    asked(lab, "next", lambda: lab.emulate_media(color_scheme="light"))


# The points of a picture: red, green, blue and opacity of each.
POINTS = """canvas => {
    const {width, height} = canvas
    return [...canvas.getContext("2d").getImageData(0, 0, width, height).data]
}"""


def wait_for_points(lab, canvas, expected, part=slice(None)):
    for _ in range(PATIENCE):
        found = canvas.evaluate(POINTS)[part]
        if found == pytest.approx(expected, abs=2):  # a half is rounded
            break
        lab.wait_for_timeout(100)
    assert found == pytest.approx(expected, abs=2)


def test_the_points_of_a_picture(lab):
    """Small weights of a head can be seen. A negative number is grey."""
    go(lab, "#attention")
    canvases = lab.locator("#heads canvas")
    expect(canvases).to_have_count(4)
    for n in range(4):
        x = n / 50
        weights = [1, 0, 0, 1 - x, x, 0, 0.001, 0.004, 0.995]
        opacity = [255 * weight**0.5 for weight in weights]
        wait_for_points(lab, canvases.nth(n), opacity, part=slice(3, None, 4))
    go(lab, "#path")
    tied, grey = lab.evaluate(
        """["tied", "text"].map(kind =>
            getComputedStyle(document.documentElement).getPropertyValue(`--${kind}bg`)
                .split(",").map(Number)
        )"""
    )
    canvases = lab.locator("#product .tied canvas")
    wait_for_points(lab, canvases.nth(0), [*tied, 255, *grey, 128])  # 2, -1
    wait_for_points(lab, canvases.nth(1), [*tied, 255, 0, 0, 0, 0])  # 1, 0


def key_of_focus(lab):
    return lab.evaluate("document.activeElement.dataset.key ?? null")


def test_arrow_keys_and_the_focus(lab):
    def press(place, *keys):
        lab.locator(place).focus()
        for key in keys:
            lab.keyboard.press(key)
        return key_of_focus(lab)

    go(lab, "#next")
    assert press("#bars .row >> nth=0", "ArrowDown", "ArrowDown", "ArrowUp") == "bar0.4"
    assert press("#bars .list >> nth=1 >> .row >> nth=2", "ArrowDown") == "bar1.1"  # the last one
    assert press("#strip .tok >> nth=1", "ArrowRight", "ArrowRight", "ArrowLeft") == "tok2"
    expect(lab.locator("#strip [tabindex='0']")).to_have_attribute("data-key", "tok2")
    lab.keyboard.press("Enter")  # what is drawn anew keeps the focus
    expect(lab.locator("#strip [aria-pressed=true]")).to_have_attribute("data-key", "tok2")
    assert key_of_focus(lab) == "tok2"
    go(lab, "#parts")
    keys = ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"]
    assert press("[data-key='attn.0.head.0']", *keys) == "attn.1.head.1"
    go(lab, "#attention?side=1")
    assert press("[data-key='head10.10']", "ArrowUp") == "head9.10"
    go(lab, "#next")
    lab.click("#write")
    expect(lab.locator("#written .w")).to_have_count(3)
    lab.locator("#written .w >> nth=0").focus()
    lab.keyboard.press("ArrowRight")
    assert lab.evaluate("document.activeElement.textContent") == "\n"


def test_a_group_of_cells_and_the_strongest_colour(lab):
    """Two rows of three cells. Another key, and a key at the end, are left to the page."""
    found = lab.evaluate(
        """async () => {
            const {choice, heat, paint, put, roving} = await import("./draw.js")
            const {el} = await import("./elements.js")
            const cells = [0, 1, 2, 3, 4, 5].map(n => el("button", `${n}`))
            const box = el("div", cells)
            document.body.append(box)
            roving(box, cells, 3, 1)
            const press = (n, key) => {
                const event = new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true})
                cells[n].focus()
                cells[n].dispatchEvent(event)
                const stops = cells.filter(cell => cell.tabIndex === 0)
                const texts = [document.activeElement, ...stops].map(cell => cell.textContent)
                return `${texts.join(" ")} ${event.defaultPrevented}`
            }
            const moves = [[1, "a"], [1, "ArrowDown"], [4, "ArrowRight"], [5, "ArrowDown"]]
            const pressed = [...moves, [3, "ArrowUp"], [0, "ArrowLeft"], [3, "ArrowLeft"]]
            const found = pressed.map(([n, key]) => press(n, key))
            found.push(paint(el("td"), -3, 2).style.getPropertyValue("--a"))
            found.push(paint(el("td"), 0, 0).style.getPropertyValue("--a"))
            const option = {text: "x", isOn: false, go: () => {}}
            const choices = () => [choice("A", [option]), choice("B", [option])]
            put(box, choices())
            box.querySelectorAll("button")[1].focus()
            put(box, choices())
            found.push(document.activeElement.parentElement.ariaLabel)
            box.remove()
            return found
        }"""
    )
    keys = ["1 1 false", "4 4 true", "5 5 true", "5 5 false", "0 0 true", "0 0 false", "2 2 true"]
    assert found == [*keys, "1", "0", "B"]


# Of the drawing at the top: boxes whose text is wider or higher, boxes on each other, what is out
# of the drawing, and arrows that end in a box or far from all.
WRONG_PLACES = """() => {
    const flow = document.querySelector("#flow")
    const {width, height} = flow.viewBox.baseVal
    const boxOf = node => {
        const {x, y, width, height} = node.getBBox()
        return {left: x, top: y, right: x + width, bottom: y + height, name: node.textContent}
    }
    const [drawing, turn] = [document.querySelector("#drawing"), document.querySelector("#turn")]
    const boxes = [...drawing.querySelectorAll("rect.box"), turn].map(boxOf)
    const shares = [...drawing.querySelectorAll("rect.share")].map(boxOf)
    const texts = [...drawing.querySelectorAll("text")].map(boxOf)
    const wrong = []
    const isAcross = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1
    const isIn = (a, b) => isAcross(a, b) && a.top >= b.top - 1 && a.bottom <= b.bottom + 1
    const isBeside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1
    const areApart = (a, b) => isBeside(a, b) || a.bottom <= b.top + 1 || b.bottom <= a.top + 1
    const all = {left: 0, top: 0, right: width, bottom: height}
    for (const one of [...boxes, ...shares, ...texts]) {
        if (!isIn(one, all)) wrong.push(["out of the drawing", one])
    }
    for (const text of texts) {
        for (const box of boxes) {
            if (!isIn(text, box) && !areApart(text, box)) wrong.push(["crosses a box", text, box])
        }
        for (const share of shares) {
            if (!areApart(text, share)) wrong.push(["on a bar", text, share])
        }
    }
    boxes.forEach((box, n) => {
        for (const other of boxes.slice(0, n)) {
            if (!areApart(box, other)) wrong.push(["boxes on each other", box, other])
        }
    })
    const names = shares.map(share => ({...share, left: share.left - 66})) // before their bars
    const ends = [...boxes, ...names, ...texts]
    for (const path of drawing.querySelectorAll("path")) {
        const length = path.getTotalLength()
        for (const at of [0, length]) {
            const {x, y} = path.getPointAtLength(at)
            const distance = ({left, right, top, bottom}) =>
                Math.hypot(Math.max(left - x, x - right, 0), Math.max(top - y, y - bottom, 0))
            const nearest = Math.min(...ends.map(distance))
            if (nearest > 16) wrong.push(["an arrow ends nowhere", path.getAttribute("d"), at])
            const isInside = ({left, right, top, bottom}) =>
                left + 1 < x && x < right - 1 && top + 1 < y && y < bottom - 1
            if (boxes.some(isInside)) wrong.push(["an arrow in a box", path.getAttribute("d")])
        }
    }
    return wrong
}"""


def test_the_drawing_at_the_top_is_in_order_in_both_sizes(lab):
    def check(size):
        for address in ("#switch", "#switch?side=1", "#switch?copy=1"):
            go(lab, address)
            assert lab.locator("#flow").get_attribute("viewBox") == size
            assert lab.locator("#drawing rect.box").count() == 5
            assert lab.locator("#drawing rect.share").count() >= 3
            assert lab.locator("#drawing path").count() == 7
            assert lab.evaluate(WRONG_PLACES) == []

    check("0 0 800 262")
    lab.set_viewport_size({"width": 390, "height": 844})
    expect(lab.locator("#flow")).to_have_attribute("viewBox", "0 0 360 520")
    check("0 0 360 520")
    lab.set_viewport_size({"width": 1300, "height": 900})
    expect(lab.locator("#flow")).to_have_attribute("viewBox", "0 0 800 262")
