"""The page of `tiedgpt explore` in Chromium: clicks, keys, links, security, accessibility."""

import json
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CONFIG, random_model
from explore_server import serving

import tiedgpt
from tiedgpt import GPT2, Tokenizer
from tiedgpt.explore.export import export
from tiedgpt.explore.views import Views, sides_of
from tiedgpt.study.corpus import Corpus

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    missing = f"{error.name} is not installed (pip install -e '.[browser]')"
else:
    expect.set_options(timeout=10_000)
    missing = None if shutil.which("chromium") else "there is no chromium (apt-get install chromium)"
if missing and os.environ.get("CI") == "true":
    raise RuntimeError(f"with CI=true the browser tests must run, but {missing}")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing is not None, reason=missing or "")]

PROMPT = "ROMEO:\nMy lord, I will not"
TAG = "<script>document.title='hacked'</script>"


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


def shakespeare():
    names = ("shakespeare-tied", "shakespeare-untied")
    models = [(name, tiedgpt.load_model(name)) for name in names]
    counts = Path(tiedgpt.__file__).parents[1] / "weights" / "shakespeare-bigrams.npz"
    return Views(sides_of(models), tiedgpt.load_tokenizer(names[0]), Corpus.read(counts), "a text")


@pytest.fixture(scope="module")
def server():
    with serving(shakespeare()) as server:
        yield server


@pytest.fixture
def open_page(chromium):
    """open_page(server, fragment, **options of a context): a page that is drawn.

    At the end, it must have asked no other machine, and have printed no error but those in page.allowed.
    """
    contexts, problems = [], []

    def open_page(server, fragment="", **options):
        context = chromium.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.allowed = []
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: problems.append((page, str(error))))
        page.on("console", lambda m: problems.append((page, m.text)) if m.type == "error" else None)
        other = lambda r: not r.url.startswith((server.origin, "data:"))  # noqa: E731
        page.on("request", lambda r: problems.append((page, r.url)) if other(r) else None)
        page.goto(server.url + fragment)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for page, text in problems if not any(part in text for part in page.allowed)] == []


def bars(page, side=0):
    return page.locator("#bars .side").nth(side).locator(".row")


def until(is_true):
    """Wait for a condition, at most half a minute."""
    for _ in range(600):
        if is_true():
            return
        time.sleep(0.05)
    raise AssertionError("the condition never came true")


def wait_for_tokens(page, count):
    expect(page.locator("#strip .tok")).to_have_count(count)


def show(page, panel):
    """Go to a panel and wait until it is drawn."""
    page.locator(f"nav a[href='#{panel}']").click()
    page.wait_for_selector(PANELS[panel])


PANELS = {  # what each has when it is drawn
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


# What the page shows


def test_the_numbers_are_the_models(open_page, server):
    page = open_page(server)
    model = server.views.sides[0].models["tied"]
    ids = server.views.tokenizer.encode(PROMPT)
    wait_for_tokens(page, len(ids))
    likeliest = int(model(ids)[-1].argmax())
    first = bars(page).first
    shown = server.views.tokenizer.token_text(likeliest).replace(" ", "·")
    assert first.locator(".t").inner_text() == shown
    row = server.views.next({"text": PROMPT}, lambda *_: None)["sides"][0]["rows"][0]
    says = f"{100 * row['probability']:.1f} %"
    assert first.locator(".p").inner_text() == says
    assert first.get_attribute("aria-label") == f"{shown}, {says}"


QUESTIONS = [  # what a student asks, where the answer is, its words
    ("what is the tie", "switch", "#flowsays", "The same W_E, transposed, scores each token: 131,072"),
    ("where in the code", "switch", "[data-turn=tied] span.tied", 'parameters["wte.weight"].T'),
    ("why symmetric", "path", "#product .tied", "The same two rows in the other order. Each product a · b"),
    ("what differs untied", "path", "#mirror", "shakespeare-untied: 0.54 ≠ "),
    (
        "does the MLP repair it",
        "path",
        "#repair",
        "from 0.00 to 1.20, and the tokens that predict themselves",
    ),
    ("are they fewer", "path", "#repair", "from 79 % to 0.2 %"),
    ("how many parameters", "cost", "#costbox", "124,439,808163,037,18438,597,37623.7 %"),
    ("and of XL", "cost", "#costbox", "1,557,611,2001,638,022,40080,411,2004.9 %"),
    ("which head or MLP", "parts", "#partsout", "Most is added by the MLP of block 3 (1.83)"),
    ("how the gradient splits", "gradient", "#gradbox", "reaches 8 rows of 1,024, the second 1,024"),
    ("what the lens shows", "lens", "#lensbox", "predicts the same token again (↺) in 8 of 8 places"),
    ("what an ablation changes", "parts", "#partsbars", "Outline: with all parts. Bar: without"),
]


@pytest.fixture(scope="module")
def student(chromium, server):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(server.url)
    yield page
    page.close()


@pytest.mark.parametrize(("question", "panel", "where", "words"), QUESTIONS)
def test_the_page_answers(student, question, panel, where, words):
    show(student, panel)
    if where == "#partsbars":
        student.get_by_role("button", name="the MLP of block 3").click()
        expect(student.locator("#partsbars .row .ghost").first).to_be_visible()
    expect(student.locator(where).first).to_contain_text(words)


def test_a_product_of_two_rows_is_the_same_in_either_order(open_page, server):
    page = open_page(server, "#path")
    page.wait_for_selector("#product canvas")
    for kind, equal in (("tied", True), ("untied", False)):
        pictures = [c.evaluate("c => c.toDataURL()") for c in page.locator(f"#product .{kind} canvas").all()]
        assert (pictures[2] == pictures[5]) == equal  # each third one is the product
        assert (pictures[:2] == pictures[4:2:-1]) == equal
    for path, cell in (
        ("with ln_f", "≠"),
        ("with the first MLP", "≠"),
        ("whole model", "≠"),
        ("W_E, W_U", "="),
    ):
        page.get_by_role("button", name=path, exact=True).click()
        expect(page.locator("#mirror")).to_contain_text(re.compile(rf"shakespeare-tied: \S+ {cell}"))


def test_turning_the_switch_moves_the_arrow_and_marks_the_branch(open_page, server):
    page = open_page(server)
    box = page.locator("#flow")
    for turn, code in (("untied: W_U", '"lm_head.weight"'), ("tied: W_E.T", '"wte.weight"')):
        page.get_by_role("button", name=turn).click()
        kind = turn.split(":")[0]
        expect(box).to_have_class(kind)
        assert page.locator(f"#flow .arrow.{kind}").count() == 1
        assert page.locator("#flow .arrow.other").count() == 1
        page.wait_for_selector(f"#switch .code[data-turn={kind}]")
        marked = page.locator("#switch .line span").evaluate_all(
            "all => all.filter(s => getComputedStyle(s).fontWeight === '700').map(s => s.textContent)"
        )
        assert marked == [f"parameters[{code}].T"]
        side = int(kind == "untied")
        text = bars(page, side).first.locator(".t").inner_text()
        assert page.locator("#flow text.t").first.text_content() == text


def test_typing_choosing_and_going_back(open_page, server):
    page = open_page(server)
    page.fill("#prompt", "ROMEO:")
    wait_for_tokens(page, 2)
    token = bars(page).first.locator(".t").inner_text()
    bars(page).first.click()
    wait_for_tokens(page, 3)
    assert page.locator("#strip .tok").last.inner_text() == token
    page.locator("#strip .tok").first.click()
    expect(page.locator("#strip .tok").first).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Draw one").first.click()  # continues from the chosen place
    wait_for_tokens(page, 2)
    assert page.input_value("#seed") == "2"


def test_the_switch_changes_the_head(open_page, server):
    page = open_page(server)
    before = bars(page, 1).first.inner_text()
    assert page.locator("#bars .side").nth(1).get_attribute("class") == "side untied"
    page.locator("#bars .side").nth(1).get_by_role("button", name="W_E.T").click()
    expect(page.locator("#bars .side").nth(1)).to_have_class("side tied")
    assert bars(page, 1).first.inner_text() != before
    assert page.locator("#bars .side").first.get_by_role("button", name="W_U").count() == 0


def test_sliders_keep_and_drop(open_page, server):
    page = open_page(server)
    expect(page.locator("#bars .ghost")).to_have_count(0)
    assert not page.locator("#top_k").is_visible()
    page.click("#sampling summary")
    page.fill("#top_k", "3")
    expect(page.locator("#bars .side").first.locator(".row:not(.out)")).to_have_count(3)
    expect(page.locator("#bars .cut").first).to_contain_text("3 kept")
    expect(page.locator("#barsnote")).to_be_visible()
    page.fill("#top_k", "0")
    expect(page.locator("#bars .row.out")).to_have_count(0)
    expect(page.locator("#sliders output").nth(1)).to_have_text("off")


def test_writing_streams_can_be_selected_and_gone_back_to(open_page, server):
    page = open_page(server)
    page.click("#write")
    page.wait_for_selector("body[data-written='40,40']")
    text = "".join(page.locator("#written .page").first.locator(".w").all_text_contents())
    ids = server.views.tokenizer.encode(PROMPT)
    model = server.views.sides[0].models["tied"]
    expected = list(tiedgpt.generate(model, ids, 40, seed=1))
    assert text == server.views.tokenizer.decode(expected)
    expect(page.locator("#written .note").first).to_contain_text("mean surprisal")
    selected = page.evaluate("""() => {
        const range = document.createRange();
        range.selectNodeContents(document.querySelector('#written .page'));
        getSelection().removeAllRanges(); getSelection().addRange(range); const text = String(getSelection());
        getSelection().removeAllRanges(); return text; }""")
    assert selected.rstrip() == (PROMPT + text).rstrip()
    page.locator("#written .w").nth(5).click()
    wait_for_tokens(page, len(ids) + 5)


def test_stop_stops(open_page, server, monkeypatch):
    steps, go_on = threading.Semaphore(0), threading.Semaphore(0)
    whole = server.views.generate

    def slow(query, step):
        for line in whole(query, step):
            steps.release()
            while not go_on.acquire(timeout=0.02):
                step()
            yield line

    monkeypatch.setattr(server.views, "generate", slow)
    page = open_page(server)
    page.click("#write")
    for _ in range(6):
        go_on.release()
    expect(page.locator("#written .w")).to_have_count(6)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_selector("body[data-written='3,3']")
    expect(page.locator("#write")).to_have_text("Write 40 tokens")
    expect(page.locator("#written .note").first).to_have_text("3 tokens; stopped")
    for _ in range(200):
        go_on.release()
    page.click("#write")
    page.wait_for_selector("body[data-written='40,40']")


def test_the_mirror_cell(open_page, server):
    page = open_page(server)
    show(page, "path")
    table = page.locator("#matrices table.heat").first
    table.locator("td[data-i='1'][data-j='4']").hover()
    expect(page.locator("#matrices td.mirror").first).to_have_attribute("data-i", "4")
    assert "=" in page.locator("#mirror").inner_text()


def test_solving_for_the_best_matrix_says_how_far_it_is_and_can_be_cancelled(open_page, monkeypatch):
    monkeypatch.setattr("tiedgpt.explore.server.PROGRESS", 0)
    corpus = Corpus.of([(7 * n + n // 11) % 40 + 60 for n in range(6000)], CONFIG.vocab_size)
    models = [("a", random_model(CONFIG)), ("b", random_model(replace(CONFIG, tied=False)))]
    views = Views(sides_of(models), Tokenizer([]), corpus, "a text")
    whole, ended, go_on = views.solved, threading.Event(), threading.Event()

    def slow(query, step):
        try:
            step(part=0.25)
            while not go_on.wait(0.01):
                step()
        finally:
            ended.set()
        return whole(query, step)

    views.solved = slow
    with serving(views) as server:
        page = open_page(server, "#path")
        page.click("#solve")
        expect(page.locator("#solve")).to_have_text("Cancel (25 % done)")
        page.click("#solve")
        expect(page.locator("#solved")).to_have_text("Cancelled.")
        assert ended.wait(10)
        go_on.set()
        page.click("#solve")
        expect(page.locator("#solved tbody tr")).to_have_count(3)
        assert "at most the difference is due to the tie" in page.locator("#solvednote").inner_text()


def test_the_three_words(open_page, server):
    page = open_page(server)
    show(page, "toy")
    untied = page.locator("#toyout .side").nth(1)
    expect(untied).to_contain_text("0.31 nats")
    page.get_by_role("button", name="Solve for W_E as well").click()
    expect(untied).to_contain_text("0.00 nats")
    page.get_by_role("button", name="Start again").click()
    expect(untied).to_contain_text("0.31 nats")
    page.get_by_role("button", name="Use 3 dimensions").click()
    expect(untied).to_contain_text("0.00 nats")
    field = page.get_by_label("The text: what follows each word: New, York")
    page.allowed = ["400 (Bad Request)"]
    field.fill("0")
    expect(page.locator("#toy .warn")).to_contain_text("above 0")
    field.fill("0.5")
    expect(page.locator("#toy .warn")).to_be_hidden()


def test_removing_a_part(open_page, server):
    page = open_page(server)
    show(page, "parts")
    page.get_by_role("button", name="the MLP of block 3").click()
    expect(page.locator("#partsout")).to_contain_text("Without the MLP of block 3")
    page.locator("#partsby").get_by_role("button", name="shakespeare-untied").click()
    expect(page.locator("#partsbox .side")).to_have_class("side untied")
    page.get_by_role("button", name="Put all parts back").click()
    expect(page.locator("#partsout")).not_to_contain_text("Without")
    expect(page.locator("#partsbars .row")).to_have_count(0)


def test_attention_gradient_and_cost(open_page, server):
    page = open_page(server)
    show(page, "attention")
    page.get_by_title("block 3, head 1").click()
    expect(page.locator("#attnbox h3")).to_have_text("block 3, head 1")
    show(page, "gradient")
    expect(page.locator("#gradbox .note")).to_contain_text("reaches 8 rows of 1,024, the second 1,024")
    show(page, "cost")
    before = page.locator("#costbox .readout").inner_text()
    page.locator("#cvocab").focus()
    page.keyboard.press("End")
    expect(page.locator("#costbox .readout")).not_to_have_text(before)


# Prompts of every kind


def test_an_empty_prompt_one_too_long_and_a_million_characters(open_page, server):
    page = open_page(server)
    page.allowed = ["400 (Bad Request)"]
    problem = page.locator("#problem")
    page.fill("#prompt", "")
    expect(problem).to_contain_text("the prompt is empty")
    page.fill("#prompt", "word " * 200)
    expect(problem).to_contain_text("more than the model's context of 128")
    page.evaluate("""() => { const p = document.querySelector('#prompt'); p.value = 'a'.repeat(1e6);
        p.dispatchEvent(new Event('input', { bubbles: true })); }""")
    expect(problem).to_contain_text("1,000,000 characters")
    page.fill("#prompt", "ROMEO:")
    wait_for_tokens(page, 2)
    expect(problem).to_be_hidden()


def test_script_in_the_prompt_and_in_a_token_and_in_a_name(open_page):
    merges, word = [], TAG[:8]  # a vocabulary that has "<script>" as one token
    for end in range(1, len(word)):
        merges.append((word[:end], word[end]))
    config = replace(CONFIG, vocab_size=257 + len(merges))
    model = GPT2(config, random_model(config).parameters)
    tokenizer = Tokenizer(merges)
    with serving(Views(sides_of([(TAG, model)]), tokenizer, None, "")) as server:
        page = open_page(server)
        page.fill("#prompt", "<script>")
        page.click("#write")
        page.wait_for_selector("body[data-written]")
        page.fill("#prompt", TAG)
        expect(page.locator("#strip")).to_contain_text("/")
        for panel in PANELS:
            show(page, panel)
        assert page.title() == "tiedgpt explore"
        assert page.locator("script").count() == 1
        assert TAG in page.locator("#models").inner_text()


def test_one_tied_model_is_one_column_without_orange(open_page):
    with serving(Views(sides_of([("one", random_model(CONFIG))]), Tokenizer([]), None, "")) as server:
        page = open_page(server)
        before = bars(page).all_inner_texts()
        page.get_by_role("button", name="untied: W_U").click()
        expect(page.locator("#flowsays")).to_contain_text("one has no W_U. An untied copy of it")
        assert bars(page).all_inner_texts() == before
        for panel in PANELS:
            show(page, panel)
        assert page.locator("#bars .side, #matrices .side, #lensbox .side, #product .side").count() == 4
        assert page.locator("main section:not(#toy) .side.untied, #flow .out").count() == 0
        expect(page.locator("#matrices")).to_contain_text("--corpus FILE")
        expect(page.locator("#solvedbox")).to_be_hidden()


def test_bytes_of_an_emoji_are_explained(open_page, server):
    page = open_page(server)
    expect(page.locator("#bytes")).to_be_hidden()
    page.fill("#prompt", "My lord \U0001f600")
    expect(page.locator("#bytes")).to_be_visible()


def test_an_earlier_token_moves_every_panel_of_the_text(open_page, server):
    page = open_page(server)
    boxes = {"path": "#nearto", "lens": "#lensbox", "parts": "#partsout", "attention": "#attnbox"}
    boxes |= {"gradient": "#gradbox", "next": "#bars"}
    texts = {}
    for panel, box in boxes.items():
        show(page, panel)
        texts[panel] = page.locator(box).inner_text()
    page.locator("#strip .tok").nth(4).click()
    for panel, box in boxes.items():
        show(page, panel)
        expect(page.locator(box)).not_to_have_text(texts[panel], use_inner_text=True)


# The address, tabs, the end


def test_the_menu_lands_on_the_panel_the_first_time(open_page, server):
    for panel in PANELS:
        page = open_page(server)
        show(page, panel)
        for _ in range(2):  # panels above fill meanwhile
            page.wait_for_timeout(150)
            header = page.locator("header").bounding_box()["height"]
            top = page.locator(f"#{panel}").bounding_box()["y"]
            at_end = page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 2")
            assert at_end or -2 <= top - header <= 12, panel
        assert page.evaluate("location.hash").startswith(f"#{panel}")
        page.context.close()


def test_back_undoes_and_copy_link_copies(open_page, server):
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    show(page, "lens")
    page.fill("#prompt", "JULIET:")
    wait_for_tokens(page, 2)
    until(lambda: "JULIET" in page.evaluate("location.hash"))
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{server.url}#lens?text=JULIET")
    page.go_back()
    expect(page.locator("#prompt")).to_have_value(PROMPT)
    page.go_back()
    until(lambda: page.evaluate("location.hash") == "")
    page.go_forward()
    until(lambda: page.evaluate("document.activeElement.parentElement.id") == "lens")


def test_a_link_shows_the_same_even_after_a_restart_on_its_port(open_page):
    with serving(shakespeare()) as server:
        page, port = open_page(server), server.server_port
        page.allowed = ["503"]  # from here on the server is stopping
        page.fill("#prompt", "JULIET:\nO & =#?\u00e9")
        page.click("#sampling summary")
        page.fill("#temperature", "1.5")
        page.locator("#bars .side").nth(1).get_by_role("button", name="W_E.T").click()
        page.fill("#seed", "7")
        show(page, "parts")
        page.get_by_role("button", name="head 1 of block 2").click()
        show(page, "toy")
        page.get_by_label("The embedding W_E, 2 numbers for each word: New, dim").first.fill("2.5")
        until(lambda: "W=2.5" in page.evaluate("location.hash"))
        shown, address = bars(page, 1).all_inner_texts(), page.evaluate("location.href")
    with serving(shakespeare(), port) as server:
        page.allowed = ["404 (Not Found)", "503"]
        page.goto("about:blank")
        page.goto(address)
        page.get_by_label("Address or secret").fill(server.url)
        page.get_by_role("button", name="Open").click()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("location.hash").startswith("#toy?")
        assert page.input_value("#prompt") == "JULIET:\nO & =#?\u00e9"
        assert (page.input_value("#temperature"), page.input_value("#seed")) == ("1.5", "7")
        assert bars(page, 1).all_inner_texts() == shown
        expect(page.locator("#bars .side").nth(1)).to_have_class("side tied")
        show(page, "parts")
        removed = page.get_by_role("button", name="head 1 of block 2")
        expect(removed).to_have_attribute("aria-pressed", "true")


def test_a_damaged_link_is_a_message(open_page, server):
    page = open_page(server, "#path?ids=1.x&removed=y&side=9&W=1,2;3&k=x&path=y")
    page.allowed = ["400 (Bad Request)"]
    expect(page.locator("#problem")).to_contain_text("ids must be")
    page.fill("#prompt", "ROMEO:")
    wait_for_tokens(page, 2)


def test_two_tabs_and_one_closed_while_it_writes(open_page, server):
    one, two = open_page(server), open_page(server)
    one.click("#write")
    one.wait_for_selector("#written .w")
    one.close()
    two.fill("#prompt", "JULIET:")
    expect(two.locator("#strip .tok").first).to_contain_text("J")
    two.click("#write")
    two.wait_for_selector("body[data-written='40,40']")


def test_the_button_stops_the_server_and_the_page_stays(open_page):
    with serving(Views(sides_of([("one", random_model(CONFIG))]), Tokenizer([]), None, "")) as server:
        page = open_page(server)
        page.allowed = ["Failed to load", "ERR_"]
        shown = bars(page).all_inner_texts()
        page.get_by_role("button", name="Stop the server").click()
        expect(page.locator("#stopped")).to_be_visible()
        assert bars(page).all_inner_texts() == shown
        page.fill("#prompt", "another")
        page.wait_for_timeout(300)
        assert page.locator("main .figure").first.evaluate("e => getComputedStyle(e).opacity") == "0.45"
        expect(page.locator("#stopped")).to_be_visible()


def test_fourteen_pages_at_once(open_page, server):
    for page in [open_page(server) for _ in range(14)]:
        assert bars(page).count() == 14


def test_a_busy_server_is_said(open_page, server, monkeypatch):
    monkeypatch.setattr("tiedgpt.explore.server.IDLE", 0.1)
    page = open_page(server)
    page.allowed = ["503"]
    page.wait_for_selector("#repair td")
    monkeypatch.setattr("tiedgpt.explore.server.CONNECTIONS", 0)
    page.wait_for_timeout(300)
    page.fill("#prompt", "ROMEO:\n")
    expect(page.locator("#problem")).to_contain_text("Close other pages of it")


def test_bars_move_while_typing_faster_than_the_model(open_page):
    views = shakespeare()
    whole, held = views.next, threading.Event()
    views.next = lambda *asked: held.wait(0.15) or whole(*asked)
    with serving(views) as server:
        page = open_page(server)
        page.evaluate("""() => { window.drawn = 0; const seen = new MutationObserver(() => window.drawn++);
            seen.observe(document.querySelector("#bars"), { childList: true }); }""")
        page.locator("#prompt").press_sequentially("my lord and the king", delay=40)
        assert page.evaluate("window.drawn") >= 3


def test_the_server_that_goes_away_while_it_writes(open_page):
    views = Views(sides_of([("one", random_model(CONFIG))]), Tokenizer([]), None, "")
    whole, go_on = views.generate, threading.Event()

    def slow(query, step):
        for line in whole(query, step):
            yield line
            while not go_on.wait(0.01):
                step()

    views.generate = slow
    with serving(views) as server:
        page = open_page(server)
        page.allowed = ["Failed to load", "ERR_"]
        page.click("#write")
        page.wait_for_selector("#written .w")
    page.click("#write")
    expect(page.locator("#write")).to_have_text("Write 40 tokens")
    expect(page.locator("#stopped")).to_be_visible()


# Security, in a browser


def test_a_rebound_name_gets_nothing(chromium, server):
    """A page of evil.example, whose name now has this machine's address, even if it knew the secret."""
    page = chromium.new_page()
    url = f"http://evil.example:{server.server_port}/{server.secret}/"
    assert page.goto(url).status == 403
    fields = json.dumps({"text": "a"})
    script = """async ([url, body]) => (await fetch(url, { method: 'POST', body,
        headers: { 'Content-Type': 'application/json' } })).status"""
    assert page.evaluate(script, [url + "next", fields]) == 403
    page.close()


def test_another_site_gets_nothing(chromium, server):
    page = chromium.new_page()
    page.route("http://other.example/", lambda route: route.fulfill(body="<p>hello"))
    page.goto("http://other.example/")
    for mode, type_ in (
        ("no-cors", "text/plain"),
        ("cors", "application/json"),
        ("no-cors", "application/json"),
    ):
        script = """async ([url, mode, type]) => { try { const r = await fetch(url, { method: 'POST', mode,
            body: '{}', headers: { 'Content-Type': type } }); return r.type + r.status; }
            catch (error) { return 'refused'; } }"""
        assert page.evaluate(script, [server.url + "quit", mode, type_]) in ("refused", "opaque0")
    page.evaluate(
        "url => { const f = document.createElement('iframe'); f.src = url; document.body.append(f); }",
        server.url,
    )
    page.wait_for_timeout(300)
    assert page.frames[-1].locator("#prompt").count() == 0  # the page lets no site frame it
    page.close()
    assert not server.stopping


# For everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
def test_axe_finds_nothing(open_page, server, scheme, width):
    page = open_page(
        server, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    page.click("#write")
    page.wait_for_selector("body[data-written='40,40']")
    for panel in PANELS:
        show(page, panel)
    page.click("#sampling summary")
    page.get_by_role("button", name="the MLP of block 3").click()
    page.wait_for_selector("#partsbars .ghost")
    rules = {"target-size": {"enabled": True}}
    found = Axe().run(page, options={"rules": rules})
    nodes = [(v["id"], [node["html"][:150] for node in v["nodes"][:3]]) for v in found.response["violations"]]
    assert nodes == []
    small = page.locator("button:visible, input:visible, summary:visible, select:visible").evaluate_all(
        "all => all.filter(e => Math.min(e.offsetWidth, e.offsetHeight) < 24).map(e => e.outerHTML)"
    )
    assert small == []
    if folder := os.environ.get("EXPLORE_PICTURES"):
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=f"{folder}/{scheme}-{width}.png", full_page=True)


def test_no_sideways_scroll_on_a_phone(open_page, server):
    page = open_page(server, viewport={"width": 390, "height": 800})
    page.click("#write")
    page.wait_for_selector("body[data-written='40,40']")
    for panel in PANELS:
        show(page, panel)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, panel
    assert page.locator(".code pre:visible").count() == 1  # the others are folded


def test_the_keyboard_reaches_everything(open_page, server):
    page = open_page(server, reduced_motion="reduce")
    for panel in PANELS:
        show(page, panel)
    page.click("#sampling summary")
    page.locator(".skip").focus()
    reached, rows = set(), 0
    for _ in range(400):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => { const e = document.activeElement, box = e.parentElement.closest('[id]');
            return e === document.body ? [] : [e.id, e.dataset.key, box?.id]; }""")
        if not at:
            break
        reached.update(at)
        rows += str(at[1]).startswith("bar")
    else:
        raise AssertionError("Tab never leaves the page")
    wanted = {"prompt", "copy", "temperature", "top_k", "top_p", "write", "seed", "matrices", "solve", "dims"}
    wanted |= {"solveW", "W00", "partsbox", "heads", "cvocab", "ctotal", "quit", "head1W_U", "draw0", "strip"}
    wanted |= {"turntied", "turnuntied", "pathmlp0"}
    assert wanted <= reached, wanted - reached
    assert rows == 2  # one stop for all bars of a model
    cell = page.locator("#matrices td[data-i='2'][data-j='3']").first
    cell.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    on = page.locator("#matrices td.on").first
    assert (on.get_attribute("data-i"), on.get_attribute("data-j")) == ("3", "4")
    page.locator("#heads button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#attnbox h3")).to_have_text("block 1, head 0")
    assert page.evaluate("document.activeElement.dataset.key") == "head1.0"  # the focus stays


def test_one_polite_live_region_says_what_changed(open_page, server):
    page = open_page(server)
    assert page.locator("[aria-live=polite]").count() == 1
    page.fill("#prompt", "JULIET:")
    expect(page.locator("#live")).to_contain_text("Likeliest next token: shakespeare-tied:")


def test_the_exported_page_opens_from_disk_without_a_network(chromium, tmp_path):
    views = shakespeare()
    text = export(views)
    assert len(text.encode()) <= 1_500_000
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else problems.append(r.url))
    page.context.set_offline(True)
    page.goto(f"file://{tmp_path}/page.html")
    page.wait_for_selector("body[data-ready]")
    untied = page.locator("#bars .side").nth(1)
    for example in page.locator("#examples button").all():
        example.click()
        expect(page.locator("#prompt")).to_have_value(re.compile(re.escape(example.inner_text().split()[-1])))
        for panel in PANELS:
            show(page, panel)
            assert page.locator(".warn:visible, #problem:visible").count() == 0, panel
        untied.get_by_role("button", name="W_E.T").click()
        expect(untied).to_have_class("side tied")
        query = {"text": page.input_value("#prompt"), "heads": ["tied"] * 2}
        token = views.next(query, lambda *_: None)["sides"][1]["rows"][0]["text"]
        expect(bars(page, 1).first.locator(".t")).to_have_text(token.replace(" ", "·").replace("\n", "⏎"))
        untied.get_by_role("button", name="W_U", exact=True).click()
        page.get_by_role("button", name="the MLP of block 3").click()
        expect(page.locator("#partsout")).to_contain_text("Without the MLP of block 3")
        page.get_by_role("button", name="Put all parts back").click()
        page.get_by_role("button", name="with the first MLP").click()
        expect(page.locator("#mirror")).to_contain_text("≠")
        page.click("#write")
        page.wait_for_selector("body[data-written='40,40']")
    page.click("#solve")
    expect(page.locator("#solved")).to_contain_text("3.37")
    assert problems == []
    page.close()
