"""The page of `tiedgpt explore` in Chromium: what a reader does, links, other sites, accessibility.

In a panel, a side is the column of a model: side 0 is the tied model and has the class "tied", side
1 is the untied model and has the class "untied". Bars show the likeliest next tokens. The panel
"path" has a table of scores; the mirror image of the score of token b after a is that of a after b.
"""

import math
import re
import shutil
import time
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from support.browser import BROWSER, Axe, expect, sync_playwright
from support.explore_server import ask, serving, shown_models
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.explore.panels import LISTED, PANELS, QUESTIONS
from tiedgpt.explore.query import ShownModels
from tiedgpt.generation import Sampling
from tiedgpt.study.corpus import Corpus

pytestmark = BROWSER

PROMPT = "ROMEO:\nMy lord, I will not"
TAG = "<script>document.title='hacked'</script>"
# The box of each panel that is filled when the panel is drawn.
BOXES = {
    "switch": "#drawing",
    "path": "#repair",
    "next": "#bars",
    "lens": "#lensbox",
    "parts": "#partsbox",
    "attention": "#attnbox",
    "gradient": "#gradbox",
}
LEAVES = "text, td, .row"  # of a box that is filled


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"],
        )


def shakespeare():
    names = ("shakespeare-tied", "shakespeare-untied")
    counts = Path(tiedgpt.__file__).parents[1] / "weights" / "shakespeare-bigrams.npz"
    return ShownModels(
        [(name, tiedgpt.load_model(name)) for name in names],
        tiedgpt.load_tokenizer(names[0]),
        ("a text", Corpus.read(counts)),
    )


@pytest.fixture(scope="module")
def server():
    with serving(shakespeare()) as server:
        yield server


@pytest.fixture
def serve():
    """serve(shown): a server that answers until the end of the test."""
    with ExitStack() as stack:
        yield lambda shown: stack.enter_context(serving(shown))


@pytest.fixture
def open_page(chromium, serve):
    """open_page(server, "#path"): the laboratory, when it is drawn, at the panel "path".

    A test fails if a page has an error without a text of `allowed_errors`, or asks another machine.
    """
    contexts = []
    problems = []

    def open_page(server, fragment="", allowed_errors=(), **options):
        options.setdefault("viewport", {"width": 1300, "height": 900})
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)

        def check(text):
            if not any(allowed in text for allowed in allowed_errors):
                problems.append(text)

        page.on("pageerror", lambda error: check(str(error)))
        page.on("console", lambda m: check(m.text) if m.type == "error" else None)
        own = (server.url, "data:")
        page.on("request", lambda r: None if r.url.startswith(own) else problems.append(r.url))
        page.goto(laboratory(server) + fragment)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def laboratory(server):
    """The address of the page with the panels."""
    return server.url + "lab"


def bars(page, side=0):
    """The likeliest next tokens of a model."""
    return page.locator("#bars .side").nth(side).locator(".row")


def tokens_of_prompt(page):
    return page.locator("#strip .tok")


def percent(p):
    """A probability as the page writes it."""
    return f"{100 * p:.{0 if p >= 0.0995 else 1}f} %"


def button(page, name):
    return page.get_by_role("button", name=name).first


def show(page, panel):
    """Go to a panel and wait until it is drawn."""
    page.locator(f"nav a[href='#{panel}']").click()
    expect(page.locator(BOXES[panel]).locator(LEAVES).first).to_be_attached()


def write(page):
    """Let both models write 40 tokens."""
    page.click("#write")
    expect(page.locator("body")).to_have_attribute("data-written", "40,40")


# What the panels say

ANSWERS = [  # panel, place, words
    ("switch", "#flowsays", "Tied, the model shakespeare-tied: W_E has a row"),
    ("switch", "#flowsays", "The same W_E, transposed, scores each token: 131,072"),
    ("switch", "#switch [data-turn=tied] span.tied", 'parameters["wte.weight"].T'),
    ("path", "#product .tied", "The same two rows in the other order. Each product a · b"),
    ("path", "#mirror", "shakespeare-untied: 0.54 ≠ "),
    ("path", "#repair", "shakespeare-tied. Yes, by the first MLP."),
    ("path", "#repair tbody tr:nth-child(1)", "W_E, W_U0.0079 %"),
    ("path", "#repair tbody tr:nth-child(3)", "with the first MLP1.200.2 %"),
    ("path", "#nearto", "·not"),
    ("lens", "#lensbox", "predicts the same token again (↺) in 8 of 8 places"),
    ("parts", "#partsout", "Most is added by the MLP of block 3 (1.83)"),
    ("gradient", "#gradbox", "reaches 8 rows of 1,024, the second 1,024"),
]


def test_the_article_and_the_laboratory_have_a_link_to_each_other(open_page, server):
    page = open_page(server)
    page.get_by_role("link", name="The article").click()
    expect(page).to_have_url(server.url)
    expect(page.locator("main p").first).to_be_visible()
    page.get_by_role("link", name="Laboratory").click()
    expect(page).to_have_url(laboratory(server))
    expect(page.locator("#prompt")).to_have_value(PROMPT)


@pytest.fixture(scope="module")
def student(chromium, server):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(laboratory(server))
    page.wait_for_selector("body[data-ready]")
    return page


@pytest.mark.parametrize(("panel", "place", "words"), ANSWERS)
def test_a_panel_answers_a_question(student, panel, place, words):
    show(student, panel)
    expect(student.locator(place).first).to_contain_text(words)


def test_the_numbers_are_the_answers(student, server):
    """One number of each kind of drawing, from the same question asked without the page."""
    row = ask(server.shown, "next", text=PROMPT)["rows"][0]
    token = row["token"].replace(" ", "·")
    probability = percent(row["probability"])
    expect(bars(student).first).to_have_accessible_name(f"{token} {probability}")
    expect(bars(student).first).to_have_text(f"{token} {probability}")
    expect(student.locator("#flow text.end").first).to_have_text(token)

    show(student, "gradient")
    found = ask(server.shown, "gradient", text=PROMPT)
    share = 100 * found["head"] ** 2 / (found["embed"] ** 2 + found["head"] ** 2)
    text = f"the output matrix has {share:.0f} % of the sum of squares"
    expect(student.locator("#gradbox")).to_contain_text(text)

    tape = {}
    server.shown.models[0](server.shown.tokenizer.encode(PROMPT), tape=tape)
    weights = tape["attn.3.pattern"][0, 1, -1]  # block 3, head 1, the last token
    show(student, "attention")
    student.locator("#heads button[title='block 3, head 1']").click()
    expect(student.locator("#attnbox h3")).to_have_text("block 3, head 1")
    cells = student.locator("#attnbox tbody tr").last.locator("td").all_text_contents()
    shown = [0.0 if cell == "·" else float(cell) for cell in cells]
    assert shown == pytest.approx(weights, abs=0.0051)
    small = [cell for cell, weight in zip(cells, weights, strict=True) if weight < 0.0045]
    assert set(small) == {"·"}

    show(student, "parts")
    found = ask(server.shown, "parts", text=PROMPT)["parts"]
    heads = [f"attn.0.head.{head}" for head in range(server.shown.models[0].config.n_head)]
    block = [*heads, "attn.0.bias", "mlp.0", "mlp.0.bias"]
    row = student.locator("#partsbox tbody tr").filter(has_text="block 0")
    cells = row.locator("td").all_text_contents()
    assert [float(cell.replace("\u2212", "-")) for cell in cells] == pytest.approx(
        [found[name] for name in block], abs=0.0051
    )


def test_an_ablation(student):
    show(student, "parts")
    button(student, "the MLP of block 3").click()
    expect(student.locator("#partsout")).to_contain_text("Without the MLP of block 3")
    expect(student.locator("#partsbars .ghost").first).to_be_visible()
    button(student, "Put all parts back").click()
    expect(student.locator("#partsout")).not_to_contain_text("Without")


def test_the_switch_and_the_choice_of_a_model(open_page, server):
    """The switch #turn changes the head, and keeps the model that is chosen in #switch.

    The arrow to the matrix that is not used has the class "other".
    """
    page = open_page(server)
    for model, head, colour, says in (
        # An untied copy has the predictions of the tied model, so the drawing keeps its colour.
        ("tied", "untied", "tied", "shakespeare-tied has no W_U. An untied copy"),
        ("tied", "tied", "tied", "Tied, the model shakespeare-tied"),
        ("untied", "untied", "untied", "Untied, the model shakespeare-untied"),
        ("untied", "tied", "tied", "Tied, the model shakespeare-untied"),
    ):
        page.locator("#switch .which").get_by_text(f"shakespeare-{model}").click()
        page.locator("#turn").get_by_text(re.compile(f"^{head}: ")).click()
        expect(page.locator("#flowsays")).to_contain_text(says)
        expect(page.locator(f"#flow.{colour} .arrow.{head}")).to_have_count(1)
        expect(page.locator("#flow .arrow.other")).to_have_count(1)
        pressed = page.locator("#switch .which [aria-pressed=true]")
        expect(pressed).to_have_text(f"shakespeare-{model}")
        code = page.locator(f".code[data-turn={head}]")
        expect(code.locator(f".line span.{head}").first).to_have_css("font-weight", "700")

    # The panel "parts" shows the same model, and can choose another one.
    page.locator("#turn").get_by_text(re.compile("^untied: ")).click()
    page.locator("#switch .which button").first.click()  # shakespeare-tied
    show(page, "parts")
    expect(page.locator("#partsbox .side.tied")).to_have_count(1)
    page.locator("#parts .which button").nth(1).click()  # shakespeare-untied
    expect(page.locator("#partsbox .side.untied")).to_have_count(1)


def test_the_direct_path(open_page, server):
    page = open_page(server, "#path?path=mlp0")
    for path, sign in [("with ln_f", "≠"), ("first MLP", "≠"), ("whole", "≠"), ("W_E, W_U", "=")]:
        button(page, path).click()
        expect(page.locator("#paths [aria-pressed=true]")).to_contain_text(path)  # it is drawn
        expect(page.locator("#mirror")).to_contain_text(re.compile(rf"-tied: \S+ {sign}"))

    page.locator("#matrices table.heat").first.locator("td[data-i='1'][data-j='4']").hover()
    expect(page.locator("#mirror")).to_be_in_viewport()
    mirror = page.locator("#matrices td.mirror")
    for number in range(mirror.count()):
        expect(mirror.nth(number)).to_have_attribute("data-i", "4")
        expect(mirror.nth(number)).to_have_attribute("data-j", "1")

    page.locator("#matrices table.heat").first.locator("td[data-i='1'][data-j='1']").hover()
    expect(page.locator("#matrices td.on").first).to_have_attribute("data-j", "1")
    expect(mirror).to_have_count(0)

    page.locator("#matrices td[data-i='2'][data-j='3']").first.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    cell = page.locator("#matrices td.on").first
    expect(cell).to_have_attribute("data-i", "3")
    expect(cell).to_have_attribute("data-j", "4")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(cell).to_have_attribute("data-i", "2")
    expect(cell).to_have_attribute("data-j", "3")


@pytest.mark.parametrize(("width", "height"), [(390, 700), (1280, 600)])
def test_what_is_said_of_a_pointed_cell_is_in_sight(open_page, server, width, height):
    page = open_page(server, "#path", viewport={"width": width, "height": height})
    page.locator("#matrices td[data-i='0'][data-j='3']").first.hover()
    expect(page.locator("#mirror")).to_contain_text("“⏎” then “,”")
    expect(page.locator("#mirror")).to_be_in_viewport(ratio=1)


def test_the_first_pair_is_the_commonest_of_different_words(open_page, serve):
    """In the text, "a" follows itself more often than "b" follows "a"."""
    corpus = Corpus.of(Tokenizer([]).encode("aaaaab c. " * 9), CONFIG.vocab_size)
    page = open_page(serve(shown_models(corpus=corpus)), "#path?text=ba")
    expect(page.locator("#mirror")).to_contain_text("\u201ca\u201d then \u201cb\u201d")


def test_a_product_of_two_rows(open_page, server):
    """Three pictures of a pair (two rows and their product), and three of its mirror image."""
    page = open_page(server, "#path")
    for kind, is_same in (("tied", True), ("untied", False)):
        canvases = page.locator(f"#product .{kind} canvas")
        expect(canvases).to_have_count(3 + 3)
        data = [canvas.evaluate("canvas => canvas.toDataURL()") for canvas in canvases.all()]
        first, second, product, mirror_first, mirror_second, mirror_product = data
        assert (product == mirror_product) == is_same
        assert ((first, second) == (mirror_second, mirror_first)) == is_same
    model = server.shown.models[1]
    (my,), (lord,) = map(server.shown.tokenizer.encode, ("My", " lord"))
    row = np.abs(model.W_E[my])
    opacity = page.locator("#product .untied canvas").first.evaluate(
        """canvas => {
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, 1);
            return [...image.data].filter((_, n) => n % 4 === 3);
        }"""
    )
    np.testing.assert_allclose(opacity, 255 * row / row.max(), rtol=0, atol=1)
    numbers = f"{model.W_E[my, 0]:.2f} \u00d7 {model.W_U[0, lord]:.2f}".replace("-", "\u2212")
    expect(page.locator("#product .untied p").first).to_contain_text(numbers)


def test_solving_for_the_best_matrix(open_page, serve):
    """The text of this test has 40 frequent tokens, each with several successors."""
    ids = [(7 * n + n // 11) % 40 + 60 for n in range(6000)]
    models = [random_model(CONFIG), random_model(replace(CONFIG, tied=False))]
    shown = shown_models(*models, corpus=Corpus.of(ids, CONFIG.vocab_size))
    page = open_page(serve(shown), "#path")
    expect(page.locator("#solve")).to_be_visible()
    page.click("#solve")
    expect(page.locator("#solved tbody tr")).to_have_count(3)
    head = ask(shown, "solve", side=1)["missing"]["head"]
    row = page.locator("#solved tbody tr").nth(1)
    expect(row.locator("td").nth(1)).to_have_text(f"{head:.2f}".replace("-", "\u2212"))


# A text


def test_a_text_is_typed_and_its_tokens_are_chosen(open_page, server):
    page = open_page(server)
    page.fill("#prompt", "ROMEO:")
    expect(page.locator("#live")).to_contain_text("Likeliest next token: shakespeare-tied:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    bars(page).first.click()  # it adds its token
    expect(tokens_of_prompt(page)).to_have_count(3)
    tokens_of_prompt(page).first.click()
    expect(tokens_of_prompt(page).first).to_have_attribute("aria-pressed", "true")
    button(page, "Draw one").click()  # after the chosen token; it replaces all that follow
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(tokens_of_prompt(page).last).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#seed")).to_have_value("2")  # it was 1; each draw has its own seed
    page.fill("#prompt", "My lord 😀")
    expect(page.locator("#bytes")).to_be_visible()  # a token is one byte of the character


def test_choosing_an_earlier_token_changes_the_panels(open_page, server):
    page = open_page(server)
    boxes = {**BOXES, "path": "#nearto", "parts": "#partsout"}
    of_a_text = [panel for panel in PANELS if panel != "switch"]
    texts = {}
    for panel in of_a_text:
        show(page, panel)
        texts[panel] = page.locator(boxes[panel]).inner_text()
    tokens_of_prompt(page).nth(4).click()
    for panel in of_a_text:
        show(page, panel)
        expect(page.locator(boxes[panel])).not_to_have_text(texts[panel], use_inner_text=True)


def test_bars_move_while_typing_faster_than_the_model(open_page, serve, monkeypatch):
    next_tokens = QUESTIONS["next"]

    def slow(query):
        time.sleep(0.1)  # the letters come every 0.04 seconds
        return next_tokens(query)

    monkeypatch.setitem(QUESTIONS, "next", slow)
    page = open_page(serve(shakespeare()))
    page.evaluate(
        """() => {
            window.drawn = 0;
            const observer = new MutationObserver(() => window.drawn++);
            observer.observe(document.querySelector("#bars"), {childList: true});
        }"""
    )
    for letter in "my lord and the king " * 10:
        page.locator("#prompt").press_sequentially(letter, delay=40)
        if page.evaluate("window.drawn") >= 3:
            return
    pytest.fail("the bars were not drawn while letters came")


def test_an_untied_model_can_use_its_embedding_as_output_matrix(open_page, server):
    page = open_page(server)
    tied, untied = page.locator("#bars .side").all()
    untied.get_by_text("W_E.T").click()
    expect(page.locator("#bars .side.untied")).to_have_count(0)  # its side has the class "tied"
    expect(tied.get_by_text("W_U")).to_have_count(0)  # the tied model has no such choice
    row = ask(server.shown, "next", text=PROMPT, side=1, head="tied")["rows"][0]
    token = row["token"].replace(" ", "·").replace("\n", "⏎")
    expect(bars(page, side=1).first.locator(".t")).to_have_text(token)


def test_a_button_that_is_pressed_is_not_replaced(open_page, server):
    """The click would be lost. The answer that has come meanwhile is drawn after the click."""
    page = open_page(server)
    page.locator("#bars .side").nth(1).get_by_text("W_E.T").hover()
    page.mouse.down()
    with page.expect_response("**/next"):
        page.evaluate(
            """() => {
                const prompt = document.querySelector("#prompt");
                prompt.value = "JULIET:";
                prompt.dispatchEvent(new Event("input", {bubbles: true}));
            }"""
        )
    page.wait_for_timeout(200)  # the answer would be drawn in this time
    page.mouse.up()
    expect(page.locator("#bars .side.untied")).to_have_count(0)  # its side has the class "tied"
    expect(tokens_of_prompt(page)).to_have_count(2)
    bars(page).first.hover()
    page.mouse.down(button="right")  # that it is released may never be said
    page.fill("#prompt", "ROMEO:JULIET:ROMEO:")
    expect(tokens_of_prompt(page)).not_to_have_count(2)


def test_a_control_for_each_field_of_sampling_changes_the_bars(open_page, server):
    page = open_page(server)
    expect(page.locator("#top_k")).not_to_be_visible()
    page.click("#sampling summary")
    expect(page.locator("#barsnote")).not_to_be_visible()
    changes = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.3,
        "greedy": True,
        "min_p": 0.4,
        "repetition_penalty": 3,
    }
    assert list(changes) == [field.name for field in fields(Sampling)]
    for name, value in changes.items():
        control = page.locator(f"#{name}")
        if value is True:
            control.check()
        else:
            control.fill(str(value))
        expect(page.locator("#barsnote")).to_be_visible()
        found = ask(server.shown, "next", text=PROMPT, **{name: value})
        dropped = [row for row in found["rows"] if not row["drawn"]]
        expect(bars(page).and_(page.locator(".out"))).to_have_count(len(dropped))
        if dropped:
            count = server.shown.models[0].config.vocab_size - found["kept"]
            expect(page.locator("#bars .cut").first).to_contain_text(f"; {count:,} dropped")
        chance = re.compile(f" {percent(found['rows'][0]['drawn'])}$")
        expect(bars(page).first).to_have_text(chance)
        if value is True:
            control.uncheck()
        else:
            control.fill("")  # the default
        expect(page.locator("#barsnote")).not_to_be_visible()
        expect(page.locator("#bars .ghost")).to_have_count(0)


def test_both_models_write_what_the_library_generates(open_page, server):
    page = open_page(server)
    page.click("#sampling summary")
    page.fill("#min_p", "0.05")
    page.fill("#seed", "7")
    write(page)
    expect(page.locator("#written .note").first).to_contain_text("mean surprisal")
    tokenizer = server.shown.tokenizer
    for side, model in enumerate(server.shown.models):
        words = page.locator("#written .page").nth(side).locator(".w").all_text_contents()
        ids = tiedgpt.generate(model, tokenizer.encode(PROMPT), 40, seed=7, min_p=0.05)
        assert "".join(words) == tokenizer.decode(list(ids))
    selected = page.evaluate(
        """() => {
            getSelection().selectAllChildren(document.querySelectorAll("#written .page")[1]);
            return String(getSelection());
        }"""
    )
    assert selected.rstrip() == (PROMPT + "".join(words)).rstrip()
    page.evaluate("getSelection().removeAllRanges()")
    page.locator("#written .w").nth(5).click()  # back to the text before it
    expect(tokens_of_prompt(page)).to_have_count(len(tokenizer.encode(PROMPT)) + 5)


def test_writing_stops(open_page, serve, monkeypatch):
    generate = QUESTIONS["generate"]

    def slow(query):
        for line in generate(query):
            time.sleep(0.1)
            yield line

    page = open_page(serve(shakespeare()), allowed_errors=["Failed to load", "ERR_"])
    with monkeypatch.context() as patch:
        patch.setitem(QUESTIONS, "generate", slow)
        page.click("#write")
        expect(page.locator("#written .w").nth(2)).to_be_visible()
        button(page, "Stop").click()
        expect(page.locator("#write")).to_have_text("Write 40 tokens")
        stopped = re.compile(r"^\d+ tokens; stopped")
        expect(page.locator("#written .note").first).to_have_text(stopped)
        expect(page.locator("#problem")).to_be_hidden()
    write(page)


def test_an_answer_may_come_in_pieces(open_page, server):
    page = open_page(server)
    found = page.evaluate(
        """async () => {
            const {ask} = await import("./state.js");
            const pieces = ['{"a": 1}\\n{"a', '": 2}\\n', '{"a": 3}'];
            const encoder = new TextEncoder();
            const send = stream => {
                for (const piece of pieces) stream.enqueue(encoder.encode(piece));
                stream.close();
            };
            const original = window.fetch;
            window.fetch = async (question, ...rest) => {
                if (question !== "pieces") return original(question, ...rest);
                return new Response(new ReadableStream({start: send}));
            };
            const found = [];
            for await (const {a} of ask("pieces")) found.push(a);
            return found;
        }"""
    )
    assert found == [1, 2, 3]


# Problems


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ("word " * 200, "more than the model's context of 128"),
        ("a" * 70_000, "expected at most 65,536 bytes"),
    ],
)
def test_a_prompt_that_is_refused(open_page, server, prompt, message):
    page = open_page(server, allowed_errors=["400 (Bad Request)", "413"])
    page.fill("#prompt", prompt)
    expect(page.locator("#problem")).to_contain_text(message)
    page.fill("#prompt", "ROMEO:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page.locator("#problem")).not_to_be_visible()


def test_damaged_links(open_page, server):
    """Every object of JavaScript has a property "constructor"."""
    page = open_page(server, "#constructor?constructor=1&seed=7")
    expect(bars(page)).to_have_count(LISTED)
    expect(page.locator("#seed")).to_have_value("7")
    fragment = "#path?ids=1_x&removed=y&side=9&W=1_2*3&top_k=x&path=y"
    page = open_page(server, fragment, allowed_errors=["400 (Bad Request)"])
    expect(page.locator("#problem")).to_contain_text("ids must be")
    page.fill("#prompt", "ROMEO:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page.locator("#problem")).not_to_be_visible()
    expect(page.locator("#matrices td").first).to_be_attached()


@pytest.mark.parametrize("by", ["button", "Ctrl-C"])
def test_a_server_that_has_stopped(open_page, serve, by):
    """The page says so, and keeps what it shows."""
    with serving(shakespeare()) as server:
        page = open_page(server, allowed_errors=["Failed to load", "ERR_"])
        # The process of a server ends without its last answers. The threads of this one do not.
        page.wait_for_load_state("networkidle")
        shown = bars(page).all_inner_texts()
        if by == "button":
            page.click("#quit")
            expect(page.locator("#stopped")).to_be_visible()
    page.fill("#prompt", "another")
    page.click("#write")
    expect(page.locator("#stopped")).to_be_visible()
    expect(page.locator("#write")).to_have_text("Write 40 tokens")
    expect(page.locator("main .figure").first).to_have_css("opacity", "0.45")  # it is dimmed
    assert bars(page).all_inner_texts() == shown


def test_a_script_in_the_prompt_in_a_token_and_in_a_name_is_not_run(open_page, serve):
    """A script in a name, TAG, would change the title of the page. "<script>" is a token."""
    word = "<script>"
    merges = [(word[:end], word[end]) for end in range(1, len(word))]
    config = replace(CONFIG, vocab_size=CONFIG.vocab_size + len(merges))
    page = open_page(serve(ShownModels([(TAG, random_model(config))], Tokenizer(merges))))
    page.fill("#prompt", TAG)
    expect(page.locator("#strip")).to_contain_text("/")  # of </script>: the new prompt is shown
    page.click("#write")
    expect(page.locator("body[data-written]")).to_be_attached()
    for panel in PANELS:
        show(page, panel)
    expect(page).to_have_title("tiedgpt explore")
    expect(page.locator("script")).to_have_count(1)  # the page's own script
    expect(page.locator("#models")).to_contain_text(TAG)


def test_one_tied_model(open_page, serve):
    """It is one column without orange, the colour of untied models. The copy predicts the same."""
    page = open_page(serve(shown_models()))
    for panel in PANELS:
        show(page, panel)
    sides = page.locator("#bars .side, #matrices .side, #lensbox .side, #product .side")
    expect(sides).to_have_count(4)  # one in each of these four boxes
    orange = page.locator("main .side.untied, #flow .out")
    expect(orange).to_have_count(0)
    expect(page.locator("#matrices")).to_contain_text("--corpus FILE")
    expect(page.locator("#solvedbox")).not_to_be_visible()
    expect(page.locator("#repair")).not_to_contain_text("In the text")
    expect(page.locator(".which button")).to_have_count(0)
    before = bars(page).all_inner_texts()
    button(page, "untied: W_U").click()
    expect(page.locator("#flowsays")).to_contain_text("a has no W_U. An untied copy of it")
    assert bars(page).all_inner_texts() == before
    expect(page.locator("#flow .copy")).to_have_count(1)
    expect(orange).to_have_count(0)


def test_a_model_without_layers_has_no_attention(open_page, serve):
    models = [random_model(replace(CONFIG, n_layer=0)), random_model(CONFIG)]
    page = open_page(serve(shown_models(*models)), "#attention", allowed_errors=["400"])
    warning = page.locator("#attention .warn")
    expect(warning).to_contain_text("this model has no layers")
    expect(page.locator("#attnbox")).to_be_empty()
    chosen = page.locator("#attention .which button")
    chosen.nth(1).click()
    expect(page.locator("#attnbox h3")).to_contain_text("block 0, head")
    expect(warning).not_to_be_visible()
    chosen.first.click()
    expect(warning).to_contain_text("this model has no layers")
    expect(page.locator("#attnbox, #heads")).to_have_text(["", ""])
    show(page, "parts")
    expect(page.locator("#partsout")).to_have_text(re.compile(r"of all numbers in the table\.$"))
    expect(page.locator("#partsbox tbody th")).to_have_text(["wte", "wpe", "ln_f.bias"])
    show(page, "path")  # its first MLP repairs nothing, and no verdict says so
    expect(page.locator("#repair td")).to_have_count(4 * 4)
    expect(page.locator("#repair .note")).to_have_count(1)


# The address


# These functions measure in one step. They may be false for a moment, while a panel is drawn.

# The panel is just below the header, or the page is scrolled to its end. Two pixels are for
# rounding.
IS_BELOW_HEADER = """panel => {
    const header = document.querySelector("header").offsetHeight;
    const {top} = document.getElementById(panel).getBoundingClientRect();
    const end = document.documentElement.scrollHeight;
    return (header - 2 <= top && top <= header + 12) || scrollY + innerHeight >= end - 2;
}"""
# All panels in sight are drawn, and those that soon may be. Until then, the menu may move too.
IS_DRAWN = """boxes => Object.entries(boxes).every(([panel, box]) => {
    const {top, bottom} = document.getElementById(panel).getBoundingClientRect();
    const isInSight = bottom > -150 && top < innerHeight + 150;
    return !isInSight || document.querySelector(`${box} :is(text, td, .row)`);
})"""
# Of the header, the menu alone is in sight. Below the last panel, there is not enough to scroll to
# its top.
IS_BELOW_MENU = """([panel, isLast]) => {
    const menu = document.querySelector("header").getBoundingClientRect().bottom;
    const {top} = document.getElementById(panel).getBoundingClientRect();
    return 0 < menu && menu < 60 && menu <= top + 1 && (isLast || top < menu + 10);
}"""
IS_AT_PLACE = """place => {
    const {top} = document.querySelector("#path").getBoundingClientRect();
    return Math.abs(top - place) <= 2;
}"""


def test_the_first_click_in_the_menu_scrolls_to_the_panel(open_page, server):
    """The panel stays below the header while the panels above it are drawn and grow."""
    for panel in ("path", "lens", "gradient"):
        page = open_page(server)
        show(page, panel)
        page.wait_for_timeout(200)
        page.wait_for_function(IS_BELOW_HEADER, arg=panel)
        expect(page).to_have_url(re.compile(f"#{panel}"))


def test_the_menu_is_in_sight_on_a_phone(open_page, server):
    page = open_page(server, viewport={"width": 390, "height": 844}, has_touch=True)
    sections = list(PANELS)
    for panel in reversed(sections):
        page.wait_for_function(IS_DRAWN, arg=BOXES)
        link = page.locator(f"nav a[href='#{panel}']")
        link.tap()
        page.wait_for_timeout(300)
        if not page.url.endswith(f"#{panel}"):  # on a busy machine, a tap may be a long one
            link.tap()
        expect(page.locator(BOXES[panel]).locator(LEAVES).first).to_be_attached()
        expect(link).to_be_in_viewport(ratio=0.95)
        page.wait_for_timeout(300)  # the panels above it may still grow
        page.wait_for_function(IS_BELOW_MENU, arg=[panel, panel == sections[-1]])


def test_back_and_forward(open_page, server):
    page = open_page(server)
    show(page, "lens")
    page.fill("#prompt", "JULIET:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page).to_have_url(re.compile("JULIET"))
    page.go_back()  # to the prompt before
    expect(page.locator("#prompt")).to_have_value(PROMPT)
    page.go_back()  # to the page as it was opened
    expect(page).to_have_url(laboratory(server))
    page.go_forward()  # the lens again, with the focus in it
    expect(page.locator("#lens > :focus")).to_be_attached()
    # Scroll to the top as a reader does, and go back as soon as the menu marks the first panel.
    # Before, the lens is in sight for two frames. In one, the page would see no scrolling at all.
    page.evaluate(
        """async () => {
            const nextFrame = () => new Promise(requestAnimationFrame);
            const current = () => {
                const marked = document.querySelectorAll("nav a[aria-current=true]");
                if (marked.length !== 1) throw Error(`the menu marks ${marked.length} panels`);
                return marked[0].hash;
            };
            await nextFrame();
            await nextFrame();
            dispatchEvent(new Event("pointerdown"));
            scrollTo(0, 0);
            for (let frame = 0; current() !== "#switch"; frame++) {
                if (frame === 600) throw Error("the menu does not mark the first panel");
                await nextFrame();
            }
            history.back();
        }"""
    )
    page.wait_for_timeout(300)  # a late change of the address would come in this time
    expect(page).to_have_url(laboratory(server))
    # A text and a click at once are two entries.
    page.evaluate(
        """() => {
            const prompt = document.querySelector("#prompt");
            prompt.value = "JULIET:";
            prompt.dispatchEvent(new Event("input", {bubbles: true}));
            document.querySelector("nav a[href='#lens']").click();
        }"""
    )
    expect(page).to_have_url(re.compile("#lens.*JULIET"))
    page.go_back()
    expect(page).to_have_url(re.compile("#switch.*JULIET"))


# The reader is in the middle of the panel "path", and the page has noted the end of the scrolling.
IS_AT_REST = """() => {
    const top = document.querySelector("#path").getBoundingClientRect().top;
    return top < -250 && history.state?.top === top;
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_back_leads_to_the_place_that_the_reader_has_left(open_page, server, width):
    """In the middle of a panel. The panels above it are drawn after the page is loaded again."""
    page = open_page(server, "#path", viewport={"width": width, "height": 800})
    expect(page.locator("#repair td").first).to_be_attached()
    page.mouse.move(width / 2, 500)
    page.mouse.wheel(0, 500)
    page.wait_for_function(IS_AT_REST)
    place = page.evaluate("document.querySelector('#path').getBoundingClientRect().top")
    # Playwright's own click may scroll first.
    page.locator("nav a[href='#gradient']").evaluate("link => link.click()")
    expect(page).to_have_url(re.compile("#gradient$"))
    page.wait_for_timeout(300)
    page.go_back()
    page.wait_for_timeout(500)
    page.wait_for_function(IS_AT_PLACE, arg=place)
    page.goto("about:blank")
    page.go_back()
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#repair td").first).to_be_attached()
    page.wait_for_timeout(500)
    page.wait_for_function(IS_AT_PLACE, arg=place)


def test_a_link_shows_the_same_page(open_page, server):
    """Also on a new server: what follows # is in no secret."""
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    typed = {
        "#prompt": "JULIET:\nO & =#?\u00e9",
        "#temperature": "1.5",
        "#min_p": "0.1",
        "#seed": "7",
    }
    page.click("#sampling summary")
    page.check("#greedy")
    for field, text in typed.items():
        page.fill(field, text)
    button(page.locator("#bars .side").nth(1), "W_E.T").click()
    show(page, "parts")
    button(page, "head 1 of block 2").click()
    expect(page.locator("#partsbars .ghost").first).to_be_attached()
    shown = bars(page, side=1).all_inner_texts()
    show(page, "parts")
    # Playwright's own click may scroll to the button first, and so to another panel.
    page.locator("#copy").evaluate("copy => copy.click()")
    expect(page.locator("#copy")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(laboratory(server) + "#parts?")

    page = open_page(server, link.removeprefix(laboratory(server)))
    for field, text in typed.items():
        expect(page.locator(field)).to_have_value(text)
    expect(page.locator("#greedy")).to_be_checked()
    show(page, "parts")
    expect(button(page, "head 1 of block 2")).to_have_attribute("aria-pressed", "true")
    show(page, "next")
    expect(page.locator("#bars .side").nth(1)).to_have_class("side tied")
    assert bars(page, side=1).all_inner_texts() == shown


# Other sites

# Send a request, and return the type and the status of the response, as "basic200". "opaque0" tells
# the site nothing about it.
POST = """async ([url, mode, type]) => {
    const headers = {"Content-Type": type};
    try {
        const response = await fetch(url, {method: "POST", mode, headers, body: '{"text": "a"}'});
        return response.type + response.status;
    } catch (error) {
        return "refused";
    }
}"""


def test_a_site_whose_name_leads_to_this_machine_gets_nothing(chromium, server):
    """The browser of this test looks for evil.example at 127.0.0.1. The site knows the secret."""
    page = chromium.new_page()
    url = f"http://evil.example:{server.server_port}/{server.secret}/"
    assert page.goto(url).status == 403
    # The site may read this response ("basic"), but its status is 403, too.
    assert page.evaluate(POST, [url + "next", "cors", "application/json"]) == "basic403"
    page.close()


def test_another_site_cannot_stop_or_frame_the_page(chromium, server):
    page = chromium.new_page()
    page.route("http://other.example/", lambda route: route.fulfill(body="<p>hello"))
    page.goto("http://other.example/")
    for mode, kind in [
        ("no-cors", "text/plain"),  # as a form does
        ("cors", "application/json"),  # with a question before
        ("no-cors", "application/json"),
    ]:
        answer = page.evaluate(POST, [server.url + "quit", mode, kind])
        assert answer in ("refused", "opaque0"), "the site learns nothing"
        assert not server.stopped
    page.evaluate(
        """url => {
            const frame = document.createElement("iframe");
            frame.src = url;
            document.body.append(frame);
        }""",
        server.url,
    )
    page.wait_for_timeout(300)  # in this time, a frame with the page would show its prompt
    expect(page.frame_locator("iframe").locator("#prompt")).to_have_count(0)
    page.close()


# Accessibility

MORE_RULES = ("target-size", "label-content-name-mismatch")  # which axe leaves out by default
# The controls that are less than 24 pixels wide or high.
SMALL_CONTROLS = """controls => controls
    .filter(control => Math.min(control.offsetWidth, control.offsetHeight) < 24)
    .map(control => control.outerHTML)"""


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])
def test_axe_finds_nothing_and_no_panel_is_too_wide(open_page, server, scheme, width):
    size = {"width": width, "height": 900}
    page = open_page(server, color_scheme=scheme, viewport=size, reduced_motion="reduce")
    write(page)
    for panel in PANELS:
        show(page, panel)
        page.wait_for_function(IS_DRAWN, arg=BOXES)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, panel
    if width == 390:  # the code is folded, but the first panel's
        expect(page.locator(".code pre:visible")).to_have_count(1)
    page.click("#sampling summary")
    button(page, "the MLP of block 3").click()
    expect(page.locator("#partsbars .ghost").first).to_be_visible()
    found = (
        Axe()
        .run(page, options={"rules": {rule: {"enabled": True} for rule in MORE_RULES}})
        .response
    )
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found["violations"]] == []
    controls = page.locator("button:visible, input:visible, summary:visible, select:visible")
    assert controls.evaluate_all(SMALL_CONTROLS) == []


# The room in the narrowest cell of the matrices, in pixels. The cells are found and measured in one
# step, because the page replaces them.
NARROWEST_ROOM = """() => {
    const rooms = [];
    for (const cell of document.querySelectorAll("#matrices .side > table td[data-i]")) {
        const text = document.createRange();
        text.selectNodeContents(cell);
        rooms.push(cell.clientWidth - text.getBoundingClientRect().width);
    }
    return Math.min(...rooms);
}"""


def test_numbers_of_the_direct_path_do_not_touch(open_page, server):
    """No text in a cell is wider than the cell, in a window of 1280 pixels."""
    page = open_page(server, "#path", viewport={"width": 1280, "height": 800})
    now = page.locator("#repair .now")  # is drawn after the matrices
    expect(now).to_contain_text("W_E, W_U")
    for path in ("with ln_f", "with the first MLP", "whole model", "W_E, W_U"):
        button(page, path).click()
        expect(now).to_contain_text(path)
        assert 6 <= page.evaluate(NARROWEST_ROOM) < math.inf


# [id, key, id of the box around it] of the element that has the focus; [] if none has it.
FOCUSED = """() => {
    const element = document.activeElement;
    if (element === document.body) return [];
    const box = element.parentElement.closest("[id]");
    return [element.id, element.dataset.key, box?.id];
}"""
# Tab must reach these: each is an element's id, its key, or the id of the box around it.
CONTROLS = (
    "prompt copy temperature top_k top_p min_p greedy write seed matrices solve "
    "partsbox heads quit draw0 strip bars turn paths"
)


def test_tab_reaches_every_control_and_leaves_the_page(open_page, server):
    """Tab stops once at the bars of each of the two models."""
    page = open_page(server, reduced_motion="reduce")
    for panel in PANELS:
        show(page, panel)
    page.click("#sampling summary")
    page.locator(".skip").focus()
    reached = []
    while not reached or reached[-1]:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
        assert len(reached) < 400, "Tab never leaves the page"
    assert {name for focused in reached for name in focused} >= set(CONTROLS.split())
    keys = [focused[1] or "" for focused in reached if focused]
    assert sum(key.startswith("bar") for key in keys) == 2


def test_a_head_is_chosen_by_keys_and_keeps_the_focus(open_page, server):
    page = open_page(server)
    show(page, "attention")
    page.locator("#heads button").first.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#attnbox h3")).to_have_text("block 1, head 0")
    assert page.evaluate("document.activeElement.dataset.key") == "head1.0"
