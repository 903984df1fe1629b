"""The page of `tiedgpt explore` in Chromium: clicks, keys, links, security, accessibility.

The page has the panels of DRAWN, one below the other. In a panel, a side is the column of a model:
side 0 is the tied model and has the class "tied", side 1 is the untied model and has the class
"untied". Bars show the likeliest next tokens. Each model can write 40 tokens after the prompt. The
panel "path" has a table of scores; the mirror image of the score of token b after a is that of a
after b. A view is a function of VIEWS that computes the answer to one kind of request of the page.
"""

import os
import re
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.explore_server import serving, shown_models, view_answer
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.explore import server as server_module
from tiedgpt.explore import turns
from tiedgpt.explore.export import exported_page
from tiedgpt.explore.shown import ShownModels
from tiedgpt.explore.views import VIEWS
from tiedgpt.explore.views.next import LISTED  # how many of the likeliest tokens have a bar
from tiedgpt.study.corpus import Corpus

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    missing = f"{error.name} is not installed (pip install -e '.[browser]')"
else:
    expect.set_options(timeout=20_000)
    missing = ""
    if shutil.which("chromium") is None:
        missing = "there is no chromium (apt-get install chromium)"
if missing and os.environ.get("CI") == "true":
    raise RuntimeError(f"with CI=true the browser tests must run, but {missing}")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=missing)]

PROMPT = "ROMEO:\nMy lord, I will not"
TAG = "<script>document.title='hacked'</script>"
MLP_OF_BLOCK_3 = "the MLP of block 3"
DRAWN = {  # each panel, and what it has when it is drawn
    "switch": "#flow .share",
    "path": "#repair td",
    "next": "#bars .row",
    "toy": "#toyout td",
    "lens": "#lensbox td",
    "parts": "#partsbox button",
    "attention": "#heads button",
    "gradient": "#gradbox td",
    "cost": "#costbox td",
}


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"],
        )


def shakespeare():
    named_models = []
    for name in ("shakespeare-tied", "shakespeare-untied"):
        named_models.append((name, tiedgpt.load_model(name)))
    counts = Path(tiedgpt.__file__).parents[1] / "weights" / "shakespeare-bigrams.npz"
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    return ShownModels(named_models, tokenizer, ("a text", Corpus.read(counts)))


@pytest.fixture(scope="module")
def server():
    with serving(shakespeare()) as server:
        yield server


@pytest.fixture
def serve():
    """serve(shown): a server that answers until the end of the test."""
    with ExitStack() as stack:
        yield lambda shown: stack.enter_context(serving(shown))


class Pages:
    """Opens pages, and collects their errors and the requests to other machines."""

    def __init__(self, chromium):
        self.chromium = chromium
        self.contexts = []
        self.problems = []

    def open(self, address, origin, allowed_errors=(), **options):
        """Open an address, and return the page when it is drawn.

        Errors of the page are collected in `problems`, but not those that contain a text of
        `allowed_errors`. So are its requests to other machines than `origin`.
        """
        options.setdefault("viewport", {"width": 1300, "height": 900})
        context = self.chromium.new_context(**options)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)

        def check_error(text):
            if not any(allowed in text for allowed in allowed_errors):
                self.problems.append(text)

        def check_console(message):
            if message.type == "error":
                check_error(message.text)

        def check_request(request):
            if not request.url.startswith((origin, "data:")):
                self.problems.append(request.url)

        page.on("pageerror", lambda error: check_error(str(error)))
        page.on("console", check_console)
        page.on("request", check_request)
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page


@pytest.fixture
def pages(chromium, serve):
    """Opens pages. A test fails if they have had problems.

    `serve` is a parameter so that its servers are stopped after the pages are closed.
    """
    pages = Pages(chromium)
    yield pages
    for context in pages.contexts:
        context.close()
    assert pages.problems == []


@pytest.fixture
def open_page(pages):
    """open_page(server, "#path"): the server's page, when it is drawn, at the panel "path"."""

    def open_page(server, fragment="", allowed_errors=(), **options):
        return pages.open(server.url + fragment, server.origin, allowed_errors, **options)

    return open_page


# Parts of the page


def bars(page, side=0):
    """The likeliest next tokens of a model."""
    return page.locator("#bars .side").nth(side).locator(".row")


def tokens_of_prompt(page):
    return page.locator("#strip .tok")


def button(page, name):
    return page.get_by_role("button", name=name).first


def show(page, panel):
    """Go to a panel and wait until it is drawn."""
    page.locator(f"nav a[href='#{panel}']").click()
    page.wait_for_selector(DRAWN[panel])


def show_all(page):
    for panel in DRAWN:
        show(page, panel)


def expect_written(page, count):
    """Wait until each of the two models has written `count` tokens and has stopped."""
    expect(page.locator("body")).to_have_attribute("data-written", f"{count},{count}")


def write(page):
    """Let both models write 40 tokens."""
    page.click("#write")
    expect_written(page, 40)


def remove_mlp_of_block_3(page):
    """Click the button of this part, and wait until the bars show what that changes."""
    button(page, MLP_OF_BLOCK_3).click()
    outline_of_a_bar_as_it_was = page.locator("#partsbars .ghost").first
    expect(outline_of_a_bar_as_it_was).to_be_visible()


# The questions of a student (the ids of the cases), and words of the page that answer them


@pytest.fixture(scope="module")
def student(chromium, server):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(server.url)
    return page


@pytest.mark.parametrize(
    ("panel", "place", "words"),
    [
        pytest.param(
            "switch",
            "#flowsays",
            "The same W_E, transposed, scores each token: 131,072",
            id="what-is-the-tie",
        ),
        pytest.param(
            "switch",
            "#switch [data-turn=tied] span.tied",
            'parameters["wte.weight"].T',
            id="where-in-the-code",
        ),
        pytest.param(
            "path",
            "#product .tied",
            "The same two rows in the other order. Each product a · b",
            id="why-symmetric",
        ),
        pytest.param("path", "#mirror", "shakespeare-untied: 0.54 ≠ ", id="what-differs-untied"),
        pytest.param(
            "path",
            "#repair",
            "shakespeare-tied. Yes, by the first MLP.",
            id="does-the-MLP-repair-it",
        ),
        pytest.param("path", "#repair tbody tr:nth-child(1)", "W_E, W_U0.0079 %", id="from-what"),
        pytest.param(
            "path", "#repair tbody tr:nth-child(3)", "with the first MLP1.200.2 %", id="to-what"
        ),
        pytest.param(
            "cost", "#costbox", "124,439,808163,037,18438,597,37623.7 %", id="how-many-parameters"
        ),
        pytest.param(
            "cost", "#costbox", "1,557,611,2001,638,022,40080,411,2004.9 %", id="and-of-XL"
        ),
        pytest.param(
            "parts",
            "#partsout",
            "Most is added by the MLP of block 3 (1.83)",
            id="which-head-or-MLP",
        ),
        pytest.param(
            "gradient",
            "#gradbox",
            "reaches 8 rows of 1,024, the second 1,024",
            id="how-the-gradient-splits",
        ),
        pytest.param(
            "lens",
            "#lensbox",
            "predicts the same token again (↺) in 8 of 8 places",
            id="what-the-lens-shows",
        ),
    ],
)
def test_a_panel_answers_a_question(student, panel, place, words):
    show(student, panel)
    expect(student.locator(place).first).to_contain_text(words)


def test_the_page_answers_what_an_ablation_changes(student):
    show(student, "parts")
    remove_mlp_of_block_3(student)
    expect(student.locator("#partsbars")).to_contain_text("Outline: with all parts. Bar: without")


def test_a_bar_has_its_token_and_its_probability(student, server):
    row = view_answer(server.shown, "next", {"text": PROMPT})["rows"][0]
    token = row["text"].replace(" ", "·")  # the page shows a space as a dot
    percent = f"{100 * row['probability']:.1f} %"
    expect(bars(student).first).to_have_accessible_name(f"{token}, {percent}")
    expect(bars(student).first).to_have_text(token + percent)
    expect(student.locator("#flow text.end").first).to_have_text(token)


# The switch


def test_the_switch_turns_to_the_untied_model(open_page, server):
    """In the diagram, the arrow to the matrix of the model not shown has the class "other".

    In the code, the words that only the shown model has are bold.
    """
    page = open_page(server)
    button(page, "untied: W_U").click()
    expect(page.locator("#flow.untied .arrow.untied")).to_have_count(1)
    expect(page.locator("#flow .arrow.other")).to_have_count(1)
    code = page.locator(".code[data-turn=untied]")
    expect(code.locator(".line span.untied").first).to_have_css("font-weight", "700")
    expect(code.locator(".line span.tied").first).to_have_css("font-weight", "400")
    expect(page.locator("#switch .line span.untied").first).to_contain_text(
        'parameters["lm_head.weight"].T'
    )


def test_the_switch_turns_back_to_the_tied_model(open_page, server):
    """In the diagram, the arrow to the matrix of the model not shown has the class "other".

    In the code, the words that only the shown model has are bold.
    """
    page = open_page(server)
    button(page, "untied: W_U").click()
    button(page, "tied: W_E.T").click()
    expect(page.locator("#flow.tied .arrow.tied")).to_have_count(1)
    expect(page.locator("#flow .arrow.other")).to_have_count(1)
    code = page.locator(".code[data-turn=tied]")
    expect(code.locator(".line span.tied").first).to_have_css("font-weight", "700")


def test_the_parts_are_those_of_the_chosen_model(open_page, server):
    page = open_page(server)
    show(page, "parts")
    expect(page.locator("#partsbox .side.tied")).to_have_count(1)
    button_of_untied_model = page.locator("#parts .which button").nth(1)
    button_of_untied_model.click()
    expect(page.locator("#partsbox .side.untied")).to_have_count(1)


# The direct path


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        pytest.param("with ln_f", "≠", id="normed"),
        pytest.param("first MLP", "≠", id="mlp0"),
        pytest.param("whole model", "≠", id="model"),
        pytest.param("W_E, W_U", "=", id="raw"),
    ],
)
def test_the_page_says_if_the_scores_of_a_path_equal_their_mirror_images(
    open_page, server, path, sign
):
    """The page opens with the path mlp0. A click on a button chooses the path of the case."""
    page = open_page(server, "#path?path=mlp0")
    button(page, path).click()
    mirror = re.compile(rf"shakespeare-tied: \S+ {sign}")
    expect(page.locator("#mirror")).to_contain_text(mirror)


def pictures(page, kind):
    """The three pictures of a pair of tokens, and the three of the same tokens in reverse order.

    They are those of a row of W_E, of a row of W_U, and of the product of both. `kind` is "tied" or
    "untied".
    """
    canvases = page.locator(f"#product .{kind} canvas")
    expect(canvases).to_have_count(3 + 3)
    data = [canvas.evaluate("canvas => canvas.toDataURL()") for canvas in canvases.all()]
    return data[:3], data[3:]


def test_a_product_of_two_rows_is_the_same_in_either_order_if_tied(open_page, server):
    page = open_page(server, "#path")
    pair, mirror = pictures(page, "tied")
    first, second, product = pair
    mirror_first, mirror_second, mirror_product = mirror
    assert product == mirror_product
    assert first == mirror_second
    assert second == mirror_first


def test_a_product_of_two_rows_changes_with_their_order_if_untied(open_page, server):
    page = open_page(server, "#path")
    pair, mirror = pictures(page, "untied")
    first, second, product = pair
    mirror_first, mirror_second, mirror_product = mirror
    assert product != mirror_product
    assert first != mirror_second
    assert second != mirror_first


def test_a_product_begins_with_the_numbers_of_the_matrices(open_page, server):
    """The page shows the pair "My" and " lord" of PROMPT."""
    page = open_page(server, "#path")
    _heads_of_tied_model, heads_of_untied_model = server.shown.by_head
    model = heads_of_untied_model["untied"]
    (my,) = server.shown.tokenizer.encode("My")
    (lord,) = server.shown.tokenizer.encode(" lord")
    first = model.W_E[my, 0]
    second = model.W_U[0, lord]
    minus_sign = "\u2212"
    numbers = f"{first:.2f} \u00d7 {second:.2f}".replace("-", minus_sign)
    expect(page.locator("#product .untied p").first).to_contain_text(numbers)


def test_the_mirror_image_of_the_cell_under_the_pointer_is_marked(open_page, server):
    page = open_page(server, "#path")
    table = page.locator("#matrices table.heat").first
    table.locator("td[data-i='1'][data-j='4']").hover()
    mirror = page.locator("#matrices td.mirror").first
    expect(mirror).to_have_attribute("data-i", "4")
    expect(mirror).to_have_attribute("data-j", "1")


# A text


def test_a_bar_adds_its_token_to_the_text(open_page, server):
    page = open_page(server)
    page.fill("#prompt", "ROMEO:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    bars(page).first.click()
    expect(tokens_of_prompt(page)).to_have_count(3)


def test_a_token_is_drawn_after_the_chosen_token(open_page, server):
    """The first token is chosen. The drawn token replaces all that follow it."""
    page = open_page(server)
    page.fill("#prompt", "ROMEO: the")
    tokens_of_prompt(page).first.click()
    expect(tokens_of_prompt(page).first).to_have_attribute("aria-pressed", "true")
    button(page, "Draw one").click()
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page.locator("#seed")).to_have_value("2")  # it was 1; each draw has its own seed


def test_an_untied_model_can_use_its_embedding_as_output_matrix(open_page, server):
    page = open_page(server)
    tied_model = page.locator("#bars .side").nth(0)
    untied_model = page.locator("#bars .side").nth(1)
    expect(page.locator("#bars .side.untied")).to_have_count(1)
    untied_model.get_by_text("W_E.T").click()
    expect(page.locator("#bars .side.untied")).to_have_count(0)  # its side has the class "tied"
    expect(tied_model.get_by_text("W_U")).to_have_count(0)  # the tied model has no such choice


def test_choosing_an_earlier_token_changes_what_the_panels_show(open_page, server):
    page = open_page(server)
    boxes = {  # a panel, and its box that depends on the chosen token
        "path": "#nearto",
        "lens": "#lensbox",
        "parts": "#partsout",
        "attention": "#attnbox",
        "gradient": "#gradbox",
        "next": "#bars",
    }
    texts = {}
    for panel, box in boxes.items():
        show(page, panel)
        texts[panel] = page.locator(box).inner_text()
    tokens_of_prompt(page).nth(4).click()
    for panel, box in boxes.items():
        show(page, panel)
        expect(page.locator(box)).not_to_have_text(texts[panel], use_inner_text=True)


def test_bars_move_while_typing_faster_than_the_model(open_page, serve, monkeypatch):
    next_tokens = VIEWS["next"]

    def slow_next_tokens(query, turn):
        time.sleep(0.1)  # the letters below come every 0.04 seconds
        return next_tokens(query, turn)

    monkeypatch.setitem(VIEWS, "next", slow_next_tokens)
    page = open_page(serve(shakespeare()))
    # Count in window.drawn how often the bars are drawn.
    page.evaluate(
        """() => {
            window.drawn = 0;
            const observer = new MutationObserver(() => window.drawn++);
            observer.observe(document.querySelector("#bars"), {childList: true});
        }"""
    )
    # Type until the bars have been drawn three times. On a busy machine this takes many letters.
    drawn = 0
    for letter in "my lord and the king " * 10:
        page.locator("#prompt").press_sequentially(letter, delay=40)  # milliseconds
        drawn = page.evaluate("window.drawn")
        if drawn >= 3:
            break
    assert drawn >= 3


def test_a_screen_reader_hears_the_likeliest_token(open_page, server):
    page = open_page(server)
    page.fill("#prompt", "ROMEO:")
    expect(page.locator("#live")).to_contain_text("Likeliest next token: shakespeare-tied:")
    expect(page.locator("[aria-live=polite]")).to_have_count(1)


# Sliders and three words


def test_the_sliders_of_sampling_are_hidden_until_they_are_unfolded(open_page, server):
    page = open_page(server)
    expect(page.locator("#top_k")).not_to_be_visible()
    page.click("#sampling summary")
    expect(page.locator("#top_k")).to_be_visible()


def test_top_k_drops_tokens(open_page, server):
    page = open_page(server)
    bars_of_one_model = page.locator("#bars .side").first
    kept = bars_of_one_model.locator(".row:not(.out)")
    dropped = page.locator("#bars .row.out")
    line_below_the_kept = bars_of_one_model.locator(".cut")
    page.click("#sampling summary")
    page.fill("#top_k", "3")
    expect(kept).to_have_count(3)
    expect(line_below_the_kept).to_contain_text("3 kept")
    explanation_of_the_bars = page.locator("#barsnote")
    expect(explanation_of_the_bars).to_be_visible()

    page.fill("#top_k", "0")  # this turns top-k off
    expect(dropped).to_have_count(0)
    value_of_top_k = page.locator("#sliders output").nth(1)
    expect(value_of_top_k).to_contain_text("off")


def test_a_probability_that_sampling_changes_has_an_outline(open_page, server):
    page = open_page(server)
    outlines = page.locator("#bars .ghost")
    expect(outlines).to_have_count(0)
    page.click("#sampling summary")
    page.fill("#top_k", "3")
    expect(outlines.first).to_be_visible()


def test_the_slider_of_the_vocabulary_changes_the_cost(open_page, server):
    page = open_page(server)
    page.fill("#cvocab", "3")
    expect(page.locator("#costbox .readout")).to_contain_text(
        "tying saves 4.1M, 0.1 % of the untied model"
    )


def test_the_untied_toy_model_fits_with_a_solved_embedding_or_in_three_dimensions(
    open_page, server
):
    """The toy model has three words. The page says how far its predictions are from the text's.

    At first, W_E has two dimensions and is not solved for. Even the best W_U does not fit then.
    """
    page = open_page(server, "#toy")
    untied = page.locator("#toyout .side").nth(1)
    does_not_fit = "0.31 nats"
    fits = "0.00 nats"
    expect(untied).to_contain_text(does_not_fit)
    button(page, "Solve for W_E").click()
    expect(untied).to_contain_text(fits)
    button(page, "Start again").click()
    expect(untied).to_contain_text(does_not_fit)
    button(page, "Use 3 dimensions").click()
    expect(untied).to_contain_text(fits)


def test_a_share_of_zero_shows_a_warning_until_it_is_changed(open_page, server):
    """A share says how often one of the toy model's words follows another in the text."""
    page = open_page(server, "#toy", allowed_errors=["400 (Bad Request)"])
    share = page.locator("#toyin [data-key=P01]")
    share.fill("0")
    expect(page.locator("#toy .warn")).to_contain_text("above 0")
    share.fill("0.5")
    expect(page.locator("#toy .warn")).not_to_be_visible()


# Problems


def test_a_damaged_link_shows_an_error_until_a_prompt_is_typed(open_page, server):
    fragment = "#path?ids=1_x&removed=y&side=9&W=1_2*3&top_k=x&path=y"
    page = open_page(server, fragment, allowed_errors=["400 (Bad Request)"])
    expect(page.locator("#problem")).to_contain_text("ids must be")
    page.fill("#prompt", "ROMEO:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page.locator("#problem")).not_to_be_visible()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param("", "the prompt is empty", id="empty"),
        pytest.param("word " * 200, "more than the model's context of 128", id="200-words"),
        pytest.param("a" * 70_000, "expected at most 65,536 bytes", id="70-kB"),
    ],
)
def test_a_prompt_that_is_refused_shows_an_error_until_it_is_replaced(
    open_page, server, prompt, message
):
    page = open_page(server, allowed_errors=["400 (Bad Request)", "413"])
    page.fill("#prompt", prompt)
    expect(page.locator("#problem")).to_contain_text(message)
    page.fill("#prompt", "ROMEO:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page.locator("#problem")).not_to_be_visible()


def test_a_character_of_several_tokens_is_explained(open_page, server):
    page = open_page(server)
    page.fill("#prompt", "My lord 😀")
    expect(page.locator("#bytes")).to_be_visible()
    page.fill("#prompt", "ROMEO:")
    expect(page.locator("#bytes")).not_to_be_visible()


def test_names_that_every_object_has_are_ignored_in_a_link(open_page, server):
    """Every object of JavaScript has a property "constructor"."""
    page = open_page(server, "#constructor?constructor=1&seed=7")
    expect(bars(page)).to_have_count(LISTED)
    expect(page.locator("#seed")).to_have_value("7")
    expect(page.locator("#problem")).not_to_be_visible()


def test_a_server_with_too_many_connections_shows_an_error(open_page, server, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.2)  # then it closes idle connections
    page = open_page(server, allowed_errors=["503"])
    expect(page.locator("#repair td").first).to_be_visible()
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 0)
    page.wait_for_timeout(400)  # meanwhile the server closes the page's idle connections
    page.fill("#prompt", "ROMEO:\n")
    expect(page.locator("#problem")).to_contain_text("Close other pages of it")


# Writing


def test_both_models_write_what_the_library_generates(open_page, server):
    page = open_page(server)
    write(page)
    expect(page.locator("#written .note").first).to_contain_text("mean surprisal")
    words = page.locator("#written .page").first.locator(".w").all_text_contents()
    ids = server.shown.tokenizer.encode(PROMPT)
    heads_of_tied_model, _heads_of_untied_model = server.shown.by_head
    expected = tiedgpt.generate(heads_of_tied_model["tied"], ids, 40, seed=1)
    assert "".join(words) == server.shown.tokenizer.decode(list(expected))


def test_what_is_written_can_be_selected(open_page, server):
    page = open_page(server)
    write(page)
    words = page.locator("#written .page").first.locator(".w").all_text_contents()
    selected = page.evaluate(
        """() => {
            getSelection().selectAllChildren(document.querySelector("#written .page"));
            return String(getSelection());
        }"""
    )
    assert selected.rstrip() == (PROMPT + "".join(words)).rstrip()


def test_a_written_token_goes_back_to_the_text_before_it(open_page, server):
    page = open_page(server)
    write(page)
    sixth_written_token = page.locator("#written .w").nth(5)
    sixth_written_token.click()
    prompt_tokens = len(server.shown.tokenizer.encode(PROMPT))
    written_tokens_before_the_sixth = 5
    expect(tokens_of_prompt(page)).to_have_count(prompt_tokens + written_tokens_before_the_sixth)


def wait_for(event, turn):
    """Wait in a view until the event is set."""
    while not event.wait(0.01):
        turn.pause()  # this ends the view if the page does not wait for its answer any more


@pytest.fixture
def go_on_after_three_tokens(monkeypatch):
    """An event. Until it is set, each model writes three tokens and waits."""
    go_on = threading.Event()
    generate = VIEWS["generate"]

    def held_generate(query, turn):
        for tokens_written, line in enumerate(generate(query, turn)):
            if tokens_written == 3:
                wait_for(go_on, turn)
            yield line

    monkeypatch.setitem(VIEWS, "generate", held_generate)
    return go_on


def test_the_button_stop_stops_both_models(open_page, server, go_on_after_three_tokens):
    """When it is clicked, each of the two models has written three tokens and waits."""
    page = open_page(server, allowed_errors=["Failed to load", "ERR_"])
    page.click("#write")
    expect(page.locator("#written .w")).to_have_count(2 * 3)
    button(page, "Stop").click()
    expect(page.locator("#write")).to_have_text("Write 40 tokens")
    expect_written(page, 3)
    expect(page.locator("#written .note").first).to_have_text("3 tokens; stopped")
    go_on_after_three_tokens.set()
    write(page)


@pytest.mark.usefixtures("go_on_after_three_tokens")
def test_quit_stops_the_server_and_the_page_stays(open_page, serve):
    """When Quit is clicked, each of the two models has written three tokens and waits."""
    page = open_page(serve(shakespeare()), allowed_errors=["Failed to load", "ERR_"])
    shown = bars(page).all_inner_texts()
    page.click("#write")
    expect(page.locator("#written .w")).to_have_count(2 * 3)
    page.click("#quit")
    expect(page.locator("#stopped")).to_be_visible()
    expect(page.locator("#write")).to_have_text("Write 40 tokens")
    page.fill("#prompt", "another")
    expect(page.locator("#stopped")).to_be_visible()
    expect(page.locator("main .figure").first).to_have_css("opacity", "0.45")  # it is dimmed
    assert bars(page).all_inner_texts() == shown


def test_a_page_whose_server_has_gone_says_so(open_page):
    with serving(shakespeare()) as server:
        page = open_page(server, allowed_errors=["Failed to load", "ERR_"])
    # The server has stopped.
    page.click("#write")
    expect(page.locator("#write")).to_have_text("Write 40 tokens")
    expect(page.locator("#stopped")).to_be_visible()


def test_a_page_can_write_after_another_of_fourteen_is_closed_while_it_writes(open_page, server):
    first, *others = [open_page(server) for _ in range(14)]
    for page in others:
        expect(bars(page)).to_have_count(LISTED)
    first.click("#write")
    expect(first.locator("#written .w").first).to_be_visible()
    first.close()
    write(others[0])


@pytest.fixture
def go_on_solving(monkeypatch):
    """An event. Until it is set, the view that solves for W_U reports a quarter and waits."""
    go_on = threading.Event()
    solved = VIEWS["solved"]

    def held_solved(query, turn):
        turn.report(0.25)
        wait_for(go_on, turn)
        return solved(query, turn)

    monkeypatch.setattr(turns, "PROGRESS_SECONDS", 0)  # each report is sent
    monkeypatch.setitem(VIEWS, "solved", held_solved)
    return go_on


@pytest.fixture
def small_server(serve):
    """A server of two small models. Its corpus has 40 tokens, 60 to 99, all of them frequent."""
    ids = [(7 * n + n // 11) % 40 + 60 for n in range(6000)]  # each has several successors
    tied_model = random_model(CONFIG)
    untied_model = random_model(replace(CONFIG, tied=False))
    corpus = Corpus.of(ids, CONFIG.vocab_size)
    return serve(shown_models(tied_model, untied_model, corpus=corpus))


def test_solving_for_the_best_matrix_can_be_cancelled_and_repeated(
    open_page, small_server, go_on_solving
):
    page = open_page(small_server, "#path")
    page.click("#solve")
    expect(page.locator("#solve")).to_have_text("Cancel (25 % done)")
    page.click("#solve")
    expect(page.locator("#solved")).to_have_text("Cancelled.")

    go_on_solving.set()  # the next view computes without waiting
    page.click("#solve")
    rows = page.locator("#solved tbody tr")
    expect(rows).to_have_count(3)  # what one factor gains, what the best W_U gains, and the rest
    expect(page.locator("#solvednote")).to_contain_text("at most the difference is due to the tie")


# Texts and names that look like HTML


def shown_with_the_token(word):
    """A model named TAG. Its tokens are bytes, and the first two, three, ... letters of `word`."""
    merges = [(word[:end], word[end]) for end in range(1, len(word))]
    config = replace(CONFIG, vocab_size=CONFIG.vocab_size + len(merges))
    return ShownModels([(TAG, random_model(config))], Tokenizer(merges))


def test_a_script_in_the_prompt_in_a_token_and_in_a_name_is_not_run(open_page, serve):
    """A script in a name, TAG, would change the title of the page."""
    page = open_page(serve(shown_with_the_token("<script>")))
    # GPT-2's words are split at < and >, so this text is read as eight bytes.
    page.fill("#prompt", "<script>")
    expect(tokens_of_prompt(page)).to_have_count(8)
    page.click("#write")
    expect(page.locator("body[data-written]")).to_be_attached()
    page.fill("#prompt", TAG)
    expect(page.locator("#strip")).to_contain_text("/")  # of </script>: the new prompt is shown
    show_all(page)
    expect(page).to_have_title("tiedgpt explore")
    expect(page.locator("script")).to_have_count(1)  # the page's own script
    expect(page.locator("#models")).to_contain_text(TAG)


# One model


def test_one_tied_model_is_one_column_without_orange(open_page, serve):
    """Orange is the colour of untied models. The panel "toy" always has both kinds."""
    page = open_page(serve(shown_models()))
    show_all(page)
    sides = page.locator("#bars .side, #matrices .side, #lensbox .side, #product .side")
    expect(sides).to_have_count(4)  # one in each of these four boxes
    orange = page.locator("main section:not(#toy) .side.untied, #flow .out")
    expect(orange).to_have_count(0)


def test_the_switch_of_one_tied_model_turns_to_an_untied_copy(open_page, serve):
    """The model is named "a". Its copy predicts the same."""
    page = open_page(serve(shown_models()))
    before = bars(page).all_inner_texts()
    button(page, "untied: W_U").click()
    expect(page.locator("#flowsays")).to_contain_text("a has no W_U. An untied copy of it")
    assert bars(page).all_inner_texts() == before


def test_without_a_corpus_the_page_says_how_to_give_one(open_page, serve):
    page = open_page(serve(shown_models()))
    show(page, "path")
    expect(page.locator("#matrices")).to_contain_text("--corpus FILE")
    expect(page.locator("#solvedbox")).not_to_be_visible()


# The address


def assert_is_below_the_header(page, panel):
    """The panel begins at the end of the header, or up to 12 pixels lower.

    It may begin two pixels higher because of rounding.
    """
    header_height = page.locator("header").bounding_box()["height"]
    top_of_panel = page.locator(f"#{panel}").bounding_box()["y"]
    assert header_height - 2 <= top_of_panel <= header_height + 12


# The page is scrolled to its end; two pixels are for rounding.
IS_AT_END = "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"


@pytest.mark.parametrize("panel", DRAWN)
def test_the_first_click_in_the_menu_scrolls_to_the_panel(open_page, server, panel):
    page = open_page(server)
    show(page, panel)
    # The panel stays below the header while the panels above it are drawn and grow.
    for _ in range(2):
        page.wait_for_timeout(150)
        # At the end of the page, a low panel cannot be scrolled up to the header.
        if not page.evaluate(IS_AT_END):
            assert_is_below_the_header(page, panel)
    expect(page).to_have_url(re.compile(f"#{panel}"))


def test_copy_link_copies_the_address(open_page, server):
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    show(page, "lens")
    page.fill("#prompt", "JULIET:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{server.url}#lens?text=JULIET")


def test_back_undoes_and_forward_opens_again(open_page, server):
    page = open_page(server)
    show(page, "lens")
    page.fill("#prompt", "JULIET:")
    expect(tokens_of_prompt(page)).to_have_count(2)
    expect(page).to_have_url(re.compile("JULIET"))
    page.go_back()  # to the prompt before
    expect(page.locator("#prompt")).to_have_value(PROMPT)
    page.go_back()  # to the page as it was opened
    expect(page).to_have_url(server.url)

    # A step forward opens the lens again, with the focus in it.
    page.go_forward()
    focus_in_lens = page.locator("#lens > :focus")
    expect(focus_in_lens).to_be_attached()


# Scroll to the top as a reader does, and go back as soon as the menu marks the first panel.
SCROLL_UP_AND_GO_BACK = """async () => {
    dispatchEvent(new Event("pointerdown"));
    scrollTo(0, 0);
    const current = () => document.querySelector("nav a[aria-current=true]").hash;
    while (current() !== "#switch") await new Promise(requestAnimationFrame);
    history.back();
}"""


def test_going_back_right_after_scrolling_leads_to_the_address_before(open_page, server):
    page = open_page(server)
    show(page, "lens")
    page.evaluate(SCROLL_UP_AND_GO_BACK)
    page.wait_for_timeout(300)  # a late change of the address would come in this time
    expect(page).to_have_url(server.url)


FIELDS = {"#prompt": "JULIET:\nO & =#?\u00e9", "#temperature": "1.5", "#seed": "7"}


def change_everything(page):
    """Change one thing of each kind that a link holds."""
    page.click("#sampling summary")
    for field, text in FIELDS.items():
        page.fill(field, text)
    untied_model = page.locator("#bars .side").nth(1)
    button(untied_model, "W_E.T").click()
    show(page, "parts")
    button(page, "head 1 of block 2").click()
    show(page, "toy")
    page.get_by_label("W_E, 2 numbers for each word: New, dim").first.fill("2.5")
    expect(page).to_have_url(re.compile("W=2.5"))


def expect_everything_changed(page):
    expect(page).to_have_url(re.compile(r"#toy\?"))
    for field, text in FIELDS.items():
        expect(page.locator(field)).to_have_value(text)
    untied_model = page.locator("#bars .side").nth(1)
    expect(untied_model).to_have_class("side tied")  # it uses W_E.T as its output matrix
    expect(page.locator("#toyin input").first).to_have_value("2.5")
    show(page, "parts")
    expect(button(page, "head 1 of block 2")).to_have_attribute("aria-pressed", "true")


def test_a_link_shows_the_same_page_after_a_restart_of_the_server_on_its_port(open_page):
    with serving(shakespeare()) as server:
        # The requests that are under way when the server stops may fail.
        page = open_page(server, allowed_errors=["Failed to load", "404 (Not Found)"])
        change_everything(page)
        shown = bars(page, side=1).all_inner_texts()
        address = page.url
        port = server.server_port

    with serving(shakespeare(), port) as server:
        page.goto("about:blank")  # so that the next line loads the page again
        page.goto(address)
        # The link has the secret of the old server. The new one asks for its own address.
        page.get_by_label("Address").fill(server.url)
        button(page, "Open").click()
        page.wait_for_selector("body[data-ready]")
        assert bars(page, side=1).all_inner_texts() == shown
        expect_everything_changed(page)


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
ADD_FRAME = """url => {
    const frame = document.createElement("iframe");
    frame.src = url;
    document.body.append(frame);
}"""


@pytest.fixture
def other_site(chromium):
    """A page of another site."""
    page = chromium.new_page()
    page.route("http://other.example/", lambda route: route.fulfill(body="<p>hello"))
    page.goto("http://other.example/")
    yield page
    page.close()


def test_a_site_whose_name_leads_to_this_machine_gets_nothing(chromium, server):
    """The browser of this test looks for evil.example at 127.0.0.1. The site knows the secret."""
    page = chromium.new_page()
    url = f"http://evil.example:{server.server_port}/{server.secret}/"
    assert page.goto(url).status == 403
    # The site may read this response ("basic"), but its status is 403, too.
    assert page.evaluate(POST, [url + "next", "cors", "application/json"]) == "basic403"
    page.close()


@pytest.mark.parametrize(
    ("mode", "content_type"),
    [
        pytest.param("no-cors", "text/plain", id="as-a-form-does"),
        pytest.param("cors", "application/json", id="with-a-question-before"),
        pytest.param("no-cors", "application/json", id="json-without-a-question"),
    ],
)
def test_another_site_cannot_stop_the_server(other_site, server, mode, content_type):
    response = other_site.evaluate(POST, [server.url + "quit", mode, content_type])
    assert response in ("refused", "opaque0"), "the site learns nothing"
    assert not server.stopping


def test_another_site_cannot_frame_the_page(other_site, server):
    other_site.evaluate(ADD_FRAME, server.url)
    other_site.wait_for_timeout(300)  # in this time, a frame with the page would show its prompt
    expect(other_site.frame_locator("iframe").locator("#prompt")).to_have_count(0)


# Accessibility


def violations(page):
    """The rules of accessibility that axe finds violated, each with up to three elements."""
    response = Axe().run(page, options={"rules": {"target-size": {"enabled": True}}}).response
    found = []
    for violation in response["violations"]:
        elements = [node["html"][:150] for node in violation["nodes"][:3]]
        found.append((violation["id"], elements))
    return found


# The controls that are less than 24 pixels wide or high.
SMALL_CONTROLS = """controls => controls
    .filter(control => Math.min(control.offsetWidth, control.offsetHeight) < 24)
    .map(control => control.outerHTML)"""


NARROW = {"width": 390, "height": 900}
WIDE = {"width": 1300, "height": 900}
each_size = pytest.mark.parametrize(
    "size", [pytest.param(NARROW, id="narrow"), pytest.param(WIDE, id="wide")]
)


@each_size
def test_no_panel_is_wider_than_the_window(open_page, server, size):
    page = open_page(server, viewport=size, reduced_motion="reduce")
    write(page)
    for panel in DRAWN:
        show(page, panel)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], panel


def test_code_is_folded_in_a_narrow_window(open_page, server):
    page = open_page(server, viewport=NARROW)
    show_all(page)
    expect(page.locator(".code pre:visible")).to_have_count(1)  # the first panel's is not folded


@pytest.mark.parametrize("scheme", ["light", "dark"])
@each_size
def test_axe_finds_nothing_and_no_control_is_small(open_page, server, scheme, size):
    page = open_page(server, color_scheme=scheme, viewport=size, reduced_motion="reduce")
    write(page)
    show_all(page)
    page.click("#sampling summary")
    expect(page.locator("#top_k")).to_be_visible()
    remove_mlp_of_block_3(page)
    assert violations(page) == []
    controls = page.locator("button:visible, input:visible, summary:visible, select:visible")
    assert controls.evaluate_all(SMALL_CONTROLS) == []


# [id, key, id of the box around it] of the element that has the focus; [] if none has it.
FOCUSED = """() => {
    const element = document.activeElement;
    if (element === document.body) return [];
    const box = element.parentElement.closest("[id]");
    return [element.id, element.dataset.key, box?.id];
}"""
# Tab must reach these: each is an element's id, its key, or the id of the box around it.
CONTROLS = (
    "prompt copy temperature top_k top_p write seed matrices solve dims solveW W00 partsbox heads "
    "cvocab ctotal quit draw0 strip bars turn paths"
)


def reached_by_tab(page):
    """[id, key, id of the box around it] of each element that has the focus, one after another."""
    page.locator(".skip").focus()
    reached = []
    for _ in range(400):  # the page has fewer elements that Tab can reach
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if not focused:
            return reached
        reached.append(focused)
    return pytest.fail("Tab never leaves the page")


def test_tab_reaches_every_control_and_leaves_the_page(open_page, server):
    page = open_page(server, reduced_motion="reduce")
    show_all(page)
    page.click("#sampling summary")
    names = set()
    for focused in reached_by_tab(page):
        names.update(focused)
    assert names >= set(CONTROLS.split())


def test_tab_stops_once_at_the_bars_of_each_model(open_page, server):
    """There are two models, so two bars are reached. The key of a bar begins with "bar"."""
    page = open_page(server, reduced_motion="reduce")
    bars_reached = []
    for _id, key, _box in reached_by_tab(page):
        if key is not None and key.startswith("bar"):
            bars_reached.append(key)
    assert len(bars_reached) == 2


def test_arrow_keys_move_in_a_matrix(open_page, server):
    page = open_page(server, "#path")
    page.locator("#matrices td[data-i='2'][data-j='3']").first.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    cell = page.locator("#matrices td.on").first
    expect(cell).to_have_attribute("data-i", "3")
    expect(cell).to_have_attribute("data-j", "4")


def test_a_head_is_chosen_by_keys_and_keeps_the_focus(open_page, server):
    page = open_page(server)
    show(page, "attention")
    page.locator("#heads button").first.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#attnbox h3")).to_have_text("block 1, head 0")
    assert page.evaluate("document.activeElement.dataset.key") == "head1.0"


# The exported page


@pytest.fixture(scope="module")
def exported(server, tmp_path_factory):
    file = tmp_path_factory.mktemp("exported") / "page.html"
    file.write_text(exported_page(server.shown), encoding="utf-8")
    return file


@pytest.fixture
def open_exported(pages, exported):
    """open_exported(example): the exported page, opened from disk, with an example as the prompt.

    The page has four examples. `example` is the number of the button, from 0 to 3.
    """

    def open_exported(example):
        page = pages.open(f"file://{exported}", "file:", offline=True)
        example_button = page.locator("#examples button").nth(example)
        last_word = example_button.inner_text().split()[-1]
        example_button.click()
        # The prompt may differ from the text on the button, but not in its last word.
        expect(page.locator("#prompt")).to_have_value(re.compile(re.escape(last_word)))
        return page

    return open_exported


def test_the_exported_page_is_small(exported):
    assert exported.stat().st_size <= 1_500_000


@pytest.mark.parametrize("example", range(4))
def test_each_panel_of_the_exported_page_shows_each_example(open_exported, example):
    page = open_exported(example)
    for panel in DRAWN:
        show(page, panel)
        expect(page.locator(".warn:visible, #problem:visible")).to_have_count(0)
    button(page, "with the first MLP").click()
    expect(page.locator("#mirror")).to_contain_text("≠")
    write(page)


@pytest.mark.parametrize("example", range(4))
def test_the_exported_page_has_the_untied_model_with_its_embedding_as_output_matrix(
    open_exported, server, example
):
    page = open_exported(example)
    untied_model = page.locator("#bars .side").nth(1)
    untied_model.get_by_text("W_E.T").click()
    expect(page.locator("#bars .side.tied")).to_have_count(2)  # the classes of both sides
    fields = {"text": page.input_value("#prompt"), "side": 1, "head": "tied"}
    first_row, *_ = view_answer(server.shown, "next", fields)["rows"]
    text = first_row["text"].replace(" ", "·").replace("\n", "⏎")  # as the page shows them
    expect(bars(page, side=1).first.locator(".t")).to_have_text(text)


@pytest.mark.parametrize("example", range(4))
def test_the_exported_page_has_the_predictions_without_a_part(open_exported, example):
    page = open_exported(example)
    show(page, "parts")
    # A real click can miss the button, if the panel is drawn again between press and release.
    button(page, MLP_OF_BLOCK_3).scroll_into_view_if_needed()
    button(page, MLP_OF_BLOCK_3).dispatch_event("click")
    expect(page.locator("#partsout")).to_contain_text("Without the MLP of block 3")
    button(page, "Put all parts back").click()
    expect(page.locator("#partsout")).not_to_contain_text("Without the MLP of block 3")


def test_the_exported_page_has_the_solved_matrix(open_exported):
    page = open_exported(0)
    page.click("#solve")
    nats_that_the_best_W_U_gains = "3.37"  # in the tied model
    expect(page.locator("#solved")).to_contain_text(nats_that_the_best_W_U_gains)
