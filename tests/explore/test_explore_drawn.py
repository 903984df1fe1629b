"""What the laboratory shows of the server's answers, and what it asks, in Chromium.

The answers are made up: with zeros, negative numbers, nulls, and numbers of two digits. The prompt
is "\\n", " to", "be", "?", of which the panels show the last three tokens. The model "a" is tied.
The model "b" is untied and has more heads and layers than one digit counts.
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
PROMPT = {"text": "\n tobe?", "tokens": [LINE, TO, BE, END], "place": 3}
SHOWN = [TO, BE, END]
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
OF_B = {"n_ctx": 6, "n_embd": 3, "n_layer": 11, "n_head": 11, "vocab_size": 12000}
SOURCE = {"file": "f.py", "line": 9, "text": 'if x:  # "a"\n    parameters["wte.weight"].T + "b"'}
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
    "sources": {panel: [{"name": "f", **SOURCE}] for panel in PANELS},
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


def patterns(heads):
    """The weight of the second token for itself counts the heads, in fiftieths."""
    shares = [n % 50 / 50 for n in range(heads)]
    weights = [[[1, 0, 0], [1 - x, x, 0], [0.001, 0.004, 0.995]] for x in shares]
    return {"patterns": floats(weights)}


def answer(question, text="", removed=(), side=0, **_):
    """What the server would answer: one or several objects."""
    if text == "refused" or removed == ["mlp.99"]:
        return [{"error": f"no part {removed[0] if removed else text}"}]
    model = START["models"][side]
    answers = {
        "start": START,
        "next": {**PROMPT, "rows": ROWS[side], "kept": [1500, 9000][side]}
        | {"kept_probability": 0.83},
        "path": {"tokens": SHOWN, "text": None if text == "no corpus" else TEXT, **SCORES[side]},
        "symmetry": SYMMETRY[side],
        "nearest": NEAREST,
        "lens": {"tokens": SHOWN, "layers": [{"positions": layer} for layer in LENS[side]]},
        "parts": parts(removed, **model) if question == "parts" else None,
        "attention": {"tokens": SHOWN, **patterns(model["n_layer"] * model["n_head"])},
        "gradient": {**GRADIENT, "read": [4, 3][side], "absent": [1, 0][side]},
        "solve": {"missing": SOLVED[side]},
    }
    return GENERATED[side] if question == "generate" else [answers[question]]


@pytest.fixture(scope="module")
def lab():
    """The page of the laboratory, for all tests of this module."""

    def reply(route):
        name = route.request.url.removeprefix(URL)
        if route.request.method == "GET":
            return route.fulfill(path=PAGE / ("page.html" if name == "lab" else name))
        try:
            lines = answer(name, **route.request.post_data_json)
        except LookupError:  # there is no such question or model
            return route.abort()
        return route.fulfill(body="\n".join(map(json.dumps, lines)))

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = chromium.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(20_000)
        page.route("**/*", reply)
        page.goto(URL + "lab")
        page.wait_for_selector("body[data-ready]")
        yield page
        chromium.close()


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
    of_b = {"side": 1, "head": "tied"}
    click("#next", "#bars .switch button >> nth=0", "next", "?heads=tied_tied", **of_b)
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
    click("#parts?head=1&removed=mlp.0", other, "parts", query, **of_b)


def test_a_head_that_is_chosen_is_in_the_answer_already(lab):
    go(lab, "#attention")
    asked = []
    lab.on("request", lambda request: asked.append(request.url))
    lab.click("#heads button >> nth=1")
    expect(lab.locator("#attnbox h3")).to_have_text("block 0, head 1")
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
    expect(lab.locator("#live")).to_have_text("Wrote 2 and 1 tokens")
    asked(lab, "next", lambda: words.last.press(" "), ids=[1, 3, 4, 7, 3])
    go(lab, "#next")
    lab.click("#write")
    asked(lab, "next", words.last.click, ids=[1, 3, 4, 7, 3])


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


def test_an_error_is_shown_until_there_is_an_answer(lab):
    go(lab, "#parts?removed=mlp.99")
    warning = lab.locator("#parts .warn")
    expect(warning).to_have_text("no part mlp.99")
    asked(lab, "parts", lambda: go(lab, "#parts"), removed=[])
    expect(warning).to_be_hidden()
    go(lab, "#next?text=refused")
    problem = lab.locator("#problem")
    expect(problem).to_have_text("no part refused")
    stale = lab.locator(".stale")
    expect(stale).to_have_count(3)
    go(lab, "#next")
    expect(problem).to_be_hidden()
    expect(lab.locator("#bars.stale")).to_have_count(0)
