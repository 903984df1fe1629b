"""The page of `tiedgpt explore` in Chromium: clicks, keys, links, security, accessibility."""

import json
import os
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
from tiedgpt.explore.views import LENS_TOKENS, Views, sides_of
from tiedgpt.study.corpus import Corpus

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    missing = f"{error.name} is not installed (pip install -e '.[browser]')"
else:
    expect.set_options(timeout=30_000)
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
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append((page, str(error))))
        page.on("console", lambda m: problems.append((page, m.text)) if m.type == "error" else None)
        other = lambda r: not r.url.startswith((*server.origins, "data:"))  # noqa: E731
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
    """Scroll a panel into view and wait until it is drawn."""
    page.locator(f"nav a[href='#{panel}']").click()
    drawn = {
        "path": "#matrices td.on",
        "toy": "#toyout td",
        "lens": "#lensbox td",
        "parts": "#partsbox button",
        "attention": "#heads button",
        "gradient": "#gradbox td",
        "cost": "#costbox td",
    }
    page.wait_for_selector(drawn[panel])


PANELS = ("path", "toy", "lens", "parts", "attention", "gradient", "cost")


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
    drawn = page.evaluate("document.querySelector('#bars .row .p').textContent")
    row = server.views.next({"text": PROMPT, "temperature": 0.9, "top_k": 8, "top_p": 0.9}, lambda *_: None)
    expected = row["sides"][0]["rows"][0]
    assert drawn == f"{100 * expected['probability']:.1f} → {100 * expected['drawn']:.0f} %"


def test_every_panel_draws_before_anything_is_touched(open_page, server):
    page = open_page(server)
    for panel in PANELS:
        show(page, panel)
    assert page.locator("#lensbox .lens").first.locator("tbody tr").count() == 5
    assert page.locator("#lensbox .lens").first.locator("tbody tr").first.locator("td").count() == LENS_TOKENS
    expect(page.locator("#verdict0")).to_contain_text("0, symmetric")
    expect(page.locator("#verdict1")).to_contain_text("1.41")
    assert "0.54 nats" in page.locator("#toyout").inner_text()
    assert page.locator(".snippet").count() == len(page.locator(".code").all()) + 8
    page.locator(".more").first.click()
    assert page.locator(".snippet").first.locator(".line").count() == 3


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
    page.locator("#bars .side").nth(1).get_by_role("button", name="wte.T").click()
    expect(page.locator("#bars .side").nth(1)).to_have_class("side tied")
    assert bars(page, 1).first.inner_text() != before
    assert page.locator("#bars .side").first.get_by_role("button", name="W_U").is_disabled()


def test_sliders_keep_and_drop(open_page, server):
    page = open_page(server)
    page.evaluate("document.querySelector('#bars .row').focus()")
    for slider, value in (("#top_k", "3"), ("#top_p", "1")):
        page.fill(slider, value)
    expect(page.locator("#bars .side").first.locator(".row:not(.out)")).to_have_count(3)
    expect(page.locator("#bars .cut").first).to_contain_text("3 kept")
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
    expected = list(tiedgpt.generate(model, ids, 40, 0.9, 8, 0.9, seed=1))
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


def test_solving_for_the_best_matrix(open_page):
    rng = CONFIG.vocab_size
    corpus = Corpus.of([(7 * n + n // 11) % 40 + 60 for n in range(6000)], rng)
    models = [("a", random_model(CONFIG)), ("b", random_model(replace(CONFIG, tied=False)))]
    with serving(Views(sides_of(models), Tokenizer([]), corpus, "a text")) as server:
        page = open_page(server)
        show(page, "path")
        page.click("#solve")
        expect(page.locator("#solved tbody tr")).to_have_count(3)
        assert "head: gone with the best W_U" in page.locator("#solved").inner_text()


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


def test_one_tied_model(open_page):
    with serving(Views(sides_of([("one", random_model(CONFIG))]), Tokenizer([]), None, "")) as server:
        page = open_page(server)
        expect(page.locator("#about")).to_contain_text("every number on both sides is the same")
        assert bars(page, 0).all_inner_texts() == bars(page, 1).all_inner_texts()
        show(page, "path")
        expect(page.locator("#matrices")).to_contain_text("--corpus FILE")
        expect(page.locator("#solvedbox")).to_be_hidden()


# The address, tabs, the end


def test_a_link_shows_the_same(open_page, server):
    page = open_page(server)
    page.fill("#prompt", "JULIET:\nO & =#?\u00e9")
    page.fill("#temperature", "1.5")
    page.locator("#bars .side").nth(1).get_by_role("button", name="wte.T").click()
    page.fill("#seed", "7")
    show(page, "parts")
    page.get_by_role("button", name="head 1 of block 2").click()
    show(page, "toy")
    page.get_by_label("The embedding W_E, 2 numbers for each word: New, dim").first.fill("2.5")
    until(lambda: "W=2.5" in page.evaluate("location.hash"))
    again = open_page(server, page.evaluate("location.hash"))
    assert again.input_value("#prompt") == "JULIET:\nO & =#?\u00e9"
    assert (again.input_value("#temperature"), again.input_value("#seed")) == ("1.5", "7")
    assert bars(again, 1).all_inner_texts() == bars(page, 1).all_inner_texts()
    expect(again.locator("#bars .side").nth(1)).to_have_class("side tied")
    show(again, "parts")
    expect(again.get_by_role("button", name="head 1 of block 2")).to_have_attribute("aria-pressed", "true")


def test_a_damaged_link_is_a_message(open_page, server):
    page = open_page(server, "#ids=1.x&removed=y&side=9&W=1,2;3&k=x")
    page.allowed = ["400 (Bad Request)"]
    expect(page.locator("#problem")).to_contain_text("ids must be a list")
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
        page.wait_for_timeout(200)
        page.fill("#temperature", "1.5")
        expect(page.locator("#stopped")).to_be_visible()


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
    page.fill("#temperature", "1.5")
    expect(page.locator("#stopped")).to_be_visible()


# Security, in a browser


def test_a_rebound_name_gets_nothing(chromium, server):
    """A page of evil.example, whose name now has this machine's address, even if it knew the secret."""
    page = chromium.new_page()
    url = f"http://evil.example:{server.server_port}/{server.secret}/"
    assert page.goto(url).status == 403
    fields = json.dumps({"page": "a", "number": 1, "text": "a"})
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
            body: '{"page":"a","number":1}', headers: { 'Content-Type': type } }); return r.type + r.status; }
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
    found = Axe().run(page)
    nodes = [(v["id"], [node["html"][:150] for node in v["nodes"][:3]]) for v in found.response["violations"]]
    assert nodes == []
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
    assert not page.locator(".code pre").first.is_visible()  # folded


def test_the_keyboard_reaches_everything(open_page, server):
    page = open_page(server, reduced_motion="reduce")
    for panel in PANELS:
        show(page, panel)
    page.locator(".skip").focus()
    reached = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => { const e = document.activeElement, box = e.parentElement.closest('[id]');
            return e === document.body ? [] : [e.id, e.dataset.key, box?.id]; }""")
        if not at:
            break
        reached.update(at)
    else:
        raise AssertionError("Tab never leaves the page")
    wanted = {
        "prompt",
        "temperature",
        "top_k",
        "top_p",
        "write",
        "seed",
        "matrices",
        "solve",
        "dims",
        "solveW",
    }
    wanted |= {"W00", "partsbox", "heads", "cvocab", "ctotal", "quit", "head1W_U", "draw0", "strip"}
    assert wanted <= reached, wanted - reached
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
