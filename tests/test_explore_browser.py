"""The page of `tiedgpt explore` in Chromium: clicks, keys, links, security, accessibility."""

import os
import re
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from explore_server import serving, views_of
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer
from tiedgpt.explore.export import export
from tiedgpt.explore.views import Views
from tiedgpt.study.corpus import Corpus

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    missing = f"{error.name} is not installed (pip install -e '.[browser]')"
else:
    expect.set_options(timeout=20_000)
    missing = (
        None if shutil.which("chromium") else "there is no chromium (apt-get install chromium)"
    )
if missing and os.environ.get("CI") == "true":
    raise RuntimeError(f"with CI=true the browser tests must run, but {missing}")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing is not None, reason=missing or "")]

PROMPT = "ROMEO:\nMy lord, I will not"
TAG = "<script>document.title='hacked'</script>"
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


@pytest.fixture(scope="module")
def chromium():
    arguments = {"args": ["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"]}
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=shutil.which("chromium"), **arguments)


def shakespeare():
    names = ("shakespeare-tied", "shakespeare-untied")
    models = [(name, tiedgpt.load_model(name)) for name in names]
    counts = Path(tiedgpt.__file__).parents[1] / "weights" / "shakespeare-bigrams.npz"
    return Views(models, tiedgpt.load_tokenizer(names[0]), ("a text", Corpus.read(counts)))


@pytest.fixture(scope="module")
def server():
    with serving(shakespeare()) as server:
        yield server


@pytest.fixture
def open_page(chromium):
    """open_page(server or views, fragment, **options of a context): a page that is drawn.

    At the end, it must have asked no other machine, and have printed no error but those in
    page.allowed.
    """
    problems = []
    with ExitStack() as stack:

        def open_page(server, fragment="", **options):
            if isinstance(server, Views):
                server = stack.enter_context(serving(server))
            size = {"width": 1300, "height": 900}
            page = stack.enter_context(
                chromium.new_context(**{"viewport": size, **options})
            ).new_page()
            page.allowed = []
            page.set_default_timeout(20_000)
            page.on("pageerror", lambda error: problems.append((page, str(error))))
            page.on(
                "console", lambda m: problems.append((page, m.text)) if m.type == "error" else None
            )
            own = (server.origin, "data:")
            page.on(
                "request",
                lambda r: None if r.url.startswith(own) else problems.append((page, r.url)),
            )
            page.goto(server.url + fragment)
            page.wait_for_selector("body[data-ready]")
            return page

        yield open_page
    assert [text for page, text in problems if not any(part in text for part in page.allowed)] == []


def bars(page, side=0):
    return page.locator("#bars .side").nth(side).locator(".row")


def button(page, name):
    return page.get_by_role("button", name=name)


def show(page, *panels):
    """Go to panels and wait until each is drawn."""
    for panel in panels or PANELS:
        page.locator(f"nav a[href='#{panel}']").click()
        page.wait_for_selector(PANELS[panel])


QUESTIONS = [  # what a student asks, where the answer is, its words
    ("what is the tie", "switch #flowsays", "The same W_E, transposed, scores each token: 131,072"),
    ("where in the code", "switch [data-turn=tied] span.tied", 'parameters["wte.weight"].T'),
    (
        "why symmetric",
        "path #product .tied",
        "The same two rows in the other order. Each product a · b",
    ),
    ("what differs untied", "path #mirror", "shakespeare-untied: 0.54 ≠ "),
    ("does the MLP repair it", "path #repair", "shakespeare-tied. Yes, by the first MLP."),
    ("from what", "path #repair tbody tr:nth-child(1)", "W_E, W_U0.0079 %"),
    ("to what", "path #repair tbody tr:nth-child(3)", "with the first MLP1.200.2 %"),
    ("how many parameters", "cost #costbox", "124,439,808163,037,18438,597,37623.7 %"),
    ("and of XL", "cost #costbox", "1,557,611,2001,638,022,40080,411,2004.9 %"),
    ("which head or MLP", "parts #partsout", "Most is added by the MLP of block 3 (1.83)"),
    ("how the gradient splits", "gradient #gradbox", "reaches 8 rows of 1,024, the second 1,024"),
    ("what the lens shows", "lens #lensbox", "predicts the same token again (↺) in 8 of 8 places"),
    ("what an ablation changes", "parts #partsbars", "Outline: with all parts. Bar: without"),
]


@pytest.fixture(scope="module")
def student(chromium, server):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(server.url)
    return page


@pytest.mark.parametrize(("question", "where", "words"), QUESTIONS)
def test_the_page_answers(student, question, where, words):
    show(student, where.split()[0])
    if "#partsbars" in where:
        follow(student, [MLP])
    expect(student.locator(f"#{where}").first).to_contain_text(words)


def test_a_product_of_two_rows_is_the_same_in_either_order(open_page, server):
    page = open_page(server, "#path")
    page.wait_for_selector("#product canvas")
    for kind, equal in (("tied", True), ("untied", False)):
        pictures = [
            c.evaluate("c => c.toDataURL()") for c in page.locator(f"#product .{kind} canvas").all()
        ]
        assert (pictures[2] == pictures[5]) == equal  # each third one is the product
        assert (pictures[:2] == pictures[4:2:-1]) == equal
    model, encode = server.views.by_head[1]["untied"], server.views.tokenizer.encode
    first = model.W_E[encode("My")[0], 0], model.W_U[0, encode(" lord")[0]]
    numbers = " \u00d7 ".join(f"{x:.2f}" for x in first).replace("-", "\u2212")
    expect(page.locator("#product .untied p").first).to_contain_text(numbers)
    page.locator("#matrices table.heat").first.locator("td[data-i='1'][data-j='4']").hover()
    expect(page.locator("#matrices td.mirror").first).to_have_attribute("data-i", "4")


TIED, UNTIED, TOY = "#bars .side >> nth=0", "#bars .side >> nth=1", "#toyout .side >> nth=1"
FIRST_P = "#toyin [data-key=P01]"
WRITE = "#write", "body[data-written='40,40']", 1
MLP = "the MLP of block 3", "#partsbars .ghost >> nth=0", True
STORIES = {  # name: fragment of the address, steps
    # A step: the name of a button, a selector that is clicked, or (a field, its text); then where
    # something is shown, and what: words, a number of elements, whether it is visible, its value or
    # CSS.
    "the switch": ("", [
        ("untied: W_U", "#flow.untied .arrow.untied", 1),
        ("", "#flow .arrow.other", 1),
        ("", ".code[data-turn=untied] .line span.untied", ("font-weight", "700")),
        ("", ".code[data-turn=untied] .line span.tied", ("font-weight", "400")),
        ("", "#switch .line span.untied", 'parameters["lm_head.weight"].T'),
        ("tied: W_E.T", "#flow.tied .arrow.tied", 1),
        ("", "#flow .arrow.other", 1),
        ("", ".code[data-turn=tied] .line span.tied", ("font-weight", "700")),
        ("nav a[href='#parts']", "#partsbox .side.tied", 1),
        ("#parts .which button >> nth=1", "#partsbox .side.untied", 1),
    ]),
    "the paths": ("#path", [
        (path, "#mirror", re.compile(rf"shakespeare-tied: \S+ {sign}"))
        for path, sign in (("with ln_f", "≠"), ("first MLP", "≠"), ("whole model", "≠"), ("W_E, W_U", "="))
    ]),
    "a text": ("", [
        (("#prompt", "ROMEO:"), "#strip .tok", 2),
        (f"{TIED} >> .row", "#strip .tok", 3),
        ("#strip .tok", "#strip .tok:first-child[aria-pressed=true]", 1),
        ("Draw one", "#strip .tok", 2),  # goes on from the chosen place
        ("", "#seed", {"value": "2"}),
        ("", "#bars .side.untied", 1),
        (f"{UNTIED} >> text='W_E.T'", "#bars .side.untied", 0),
        ("", f"{TIED} >> text='W_U'", 0),
    ]),
    "sliders": ("", [
        ("", "#bars .ghost", 0),
        ("", "#top_k", False),
        ("#sampling summary", "#top_k", True),
        (("#top_k", "3"), f"{TIED} >> .row:not(.out)", 3),
        ("", "#bars .cut", "3 kept"),
        ("", "#barsnote", True),
        (("#top_k", "0"), "#bars .row.out", 0),
        ("", "#sliders output >> nth=1", "off"),
        (("#cvocab", "3"), "#costbox .readout", "tying saves 4.1M, 0.1 % of the untied model"),
    ]),
    "three words": ("#toy", [
        ("", TOY, "0.31 nats"),
        ("Solve for W_E", TOY, "0.00 nats"),
        ("Start again", TOY, "0.31 nats"),
        ("Use 3 dimensions", TOY, "0.00 nats"),
        ((FIRST_P, "0"), "#toy .warn", "above 0"),
        ((FIRST_P, "0.5"), "#toy .warn", False),
    ]),
    "what cannot be read": ("#path?ids=1_x&removed=y&side=9&W=1_2*3&top_k=x&path=y", [  # a damaged link
        ("", "#problem", "ids must be"),
        (("#prompt", ""), "#problem", "the prompt is empty"),
        (("#prompt", "word " * 200), "#problem", "more than the model's context of 128"),
        (("#prompt", "a" * 70_000), "#problem", "expected at most 65,536 bytes"),
        (("#prompt", "My lord 😀"), "#bytes", True),
        (("#prompt", "ROMEO:"), "#strip .tok", 2),
        ("", "#problem", False),
        ("", "#bytes", False),
    ]),
    "names that every object has": ("#constructor?constructor=1&seed=7", [
        ("", f"{TIED} >> .row", 14),
        ("", "#seed", {"value": "7"}),
        ("", "#problem", False),
    ]),
}  # fmt: skip


def follow(page, steps):
    for do, where, shown in steps:
        if isinstance(do, tuple):
            page.fill(*do)
        elif do:
            (page.locator(do) if do.startswith(("#", "nav")) else button(page, do)).first.click()
        found = page.locator(where)
        if isinstance(shown, bool):
            expect(found).to_be_visible(visible=shown)
        elif isinstance(shown, int):
            expect(found).to_have_count(shown)
        elif isinstance(shown, tuple):
            expect(found.first).to_have_css(*shown)
        elif isinstance(shown, dict):
            expect(found).to_have_value(shown["value"])
        else:
            expect(found.first).to_contain_text(shown)


@pytest.mark.parametrize("story", STORIES)
def test_the_page_does(open_page, server, story):
    fragment, steps = STORIES[story]
    page = open_page(server, fragment)
    page.allowed = ["400 (Bad Request)", "413"]
    follow(page, steps)


def test_a_bar_has_its_token_and_its_probability(student, server):
    row = server.views.next({"text": PROMPT}, lambda *_: None)["rows"][0]
    name = f"{row['text'].replace(' ', '·')}, {100 * row['probability']:.1f} %"
    expect(bars(student).first).to_have_accessible_name(name)
    expect(bars(student).first).to_have_text(name.replace(", ", ""))
    expect(student.locator("#flow text.end").first).to_have_text(name.split(",")[0])


def test_writing_streams_can_be_selected_and_gone_back_to(open_page, server):
    page = open_page(server)
    follow(page, [WRITE, ("", "#written .note", "mean surprisal")])
    text = "".join(page.locator("#written .page").first.locator(".w").all_text_contents())
    ids = server.views.tokenizer.encode(PROMPT)
    expected = tiedgpt.generate(server.views.by_head[0]["tied"], ids, 40, seed=1)
    assert text == server.views.tokenizer.decode(list(expected))
    selected = page.evaluate("""() => {
        getSelection().selectAllChildren(document.querySelector('#written .page'));
        const text = String(getSelection()); getSelection().removeAllRanges(); return text; }""")
    assert selected.rstrip() == (PROMPT + text).rstrip()
    follow(page, [("#written .w >> nth=5", "#strip .tok", len(ids) + 5)])


def test_stop_stops_the_text_or_the_server_and_the_page_stays(open_page):
    views, go_on = shakespeare(), threading.Event()
    generate = views.generate

    def held(query, step):  # after three tokens
        for n, line in enumerate(generate(query, step)):
            while n == 3 and not go_on.wait(0.01):
                step()
            yield line

    views.generate = held
    with serving(views) as server:
        page = open_page(server)
        page.allowed = ["Failed to load", "ERR_"]
        shown = bars(page).all_inner_texts()
        follow(page, [("#write", "#written .w", 6), ("Stop", "#write", "Write 40 tokens")])
        note = re.compile("^3 tokens; stopped$")
        follow(page, [("", "body[data-written='3,3']", 1), ("", "#written .note", note)])
        go_on.set()
        follow(page, [WRITE])
        go_on.clear()
        follow(page, [("#write", "#written .w", 6), ("#quit", "#stopped", True)])
        follow(
            page, [("", "#write", "Write 40 tokens"), (("#prompt", "another"), "#stopped", True)]
        )
        expect(page.locator("main .figure").first).to_have_css("opacity", "0.45")
        assert bars(page).all_inner_texts() == shown
    follow(page, [("#write", "#write", "Write 40 tokens"), ("", "#stopped", True)])


def test_solving_for_the_best_matrix_says_how_far_it_is_and_can_be_cancelled(
    open_page, monkeypatch
):
    monkeypatch.setattr("tiedgpt.explore.server.PROGRESS", 0)
    corpus = Corpus.of([(7 * n + n // 11) % 40 + 60 for n in range(6000)], CONFIG.vocab_size)
    models = random_model(CONFIG), random_model(replace(CONFIG, tied=False))
    views, go_on = views_of(*models, text=("a text", corpus)), threading.Event()
    solved = views.solved

    def held(query, step):
        step(part=0.25)
        while not go_on.wait(0.01):
            step()
        return solved(query, step)

    views.solved = held
    page = open_page(views, "#path")
    cancel, cancelled = re.compile(r"^Cancel \(25 % done\)$"), re.compile(r"^Cancelled\.$")
    follow(page, [("#solve", "#solve", cancel), ("#solve", "#solved", cancelled)])
    go_on.set()
    note = "at most the difference is due to the tie"
    follow(page, [("#solve", "#solved tbody tr", 3), ("", "#solvednote", note)])


def test_script_in_the_prompt_and_in_a_token_and_in_a_name(open_page):
    word = TAG[:8]  # a vocabulary that has "<script>" as one token
    merges = [(word[:end], word[end]) for end in range(1, len(word))]
    config = replace(CONFIG, vocab_size=257 + len(merges))
    model = GPT2(config, random_model(config).parameters)
    page = open_page(Views([(TAG, model)], Tokenizer(merges)))
    follow(page, [(("#prompt", "<script>"), "#strip .tok", 8), ("#write", "body[data-written]", 1)])
    follow(page, [(("#prompt", TAG), "#strip", "/")])
    show(page)
    assert page.title() == "tiedgpt explore"
    assert page.locator("script").count() == 1
    assert TAG in page.locator("#models").inner_text()


def test_one_tied_model_is_one_column_without_orange(open_page):
    page = open_page(views_of())
    before = bars(page).all_inner_texts()
    follow(page, [("untied: W_U", "#flowsays", "a has no W_U. An untied copy of it")])
    assert bars(page).all_inner_texts() == before
    show(page)
    sides = "#bars .side, #matrices .side, #lensbox .side, #product .side"
    orange = "main section:not(#toy) .side.untied, #flow .out"
    solved = ("", "#solvedbox", False)
    follow(page, [("", sides, 4), ("", orange, 0), ("", "#matrices", "--corpus FILE"), solved])


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


def test_the_menu_lands_on_the_panel_the_first_time(open_page, server):
    for panel in PANELS:
        page = open_page(server)
        show(page, panel)
        for _ in range(2):  # panels above fill meanwhile
            page.wait_for_timeout(150)
            header = page.locator("header").bounding_box()["height"]
            top = page.locator(f"#{panel}").bounding_box()["y"]
            at_end = page.evaluate(
                "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"
            )
            assert at_end or -2 <= top - header <= 12, panel
        assert page.evaluate("location.hash").startswith(f"#{panel}")
        page.context.close()


def test_back_undoes_and_copy_link_copies(open_page, server):
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    show(page, "lens")
    follow(page, [(("#prompt", "JULIET:"), "#strip .tok", 2)])
    expect(page).to_have_url(re.compile("JULIET"))
    follow(page, [("#copy", "#copy", re.compile("^Copied$"))])
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{server.url}#lens?text=JULIET")
    page.go_back()
    expect(page.locator("#prompt")).to_have_value(PROMPT)
    page.go_back()
    expect(page).to_have_url(server.url)
    page.go_forward()
    expect(page.locator("#lens > :focus")).to_be_attached()
    page.evaluate("""async () => { dispatchEvent(new Event('pointerdown')); scrollTo(0, 0);
        const current = () => document.querySelector('nav a[aria-current=true]').hash;
        while (current() !== '#switch') await new Promise(requestAnimationFrame);
        history.back(); }""")  # at once after scrolling
    page.wait_for_timeout(300)
    expect(page).to_have_url(server.url)


def test_a_link_shows_the_same_even_after_a_restart_on_its_port(open_page):
    with serving(shakespeare()) as server:
        page, port = open_page(server), server.server_port
        page.allowed = ["Failed to load", "404 (Not Found)"]  # from here on the server is stopping
        page.click("#sampling summary")
        fields = {"#prompt": "JULIET:\nO & =#?\u00e9", "#temperature": "1.5", "#seed": "7"}
        for field, text in fields.items():
            page.fill(field, text)
        button(page.locator("#bars .side").nth(1), "W_E.T").click()
        show(page, "parts")
        button(page, "head 1 of block 2").click()
        show(page, "toy")
        page.get_by_label("W_E, 2 numbers for each word: New, dim").first.fill("2.5")
        expect(page).to_have_url(re.compile("W=2.5"))
        shown, address = bars(page, 1).all_inner_texts(), page.evaluate("location.href")
    with serving(shakespeare(), port) as server:
        page.goto("about:blank")
        page.goto(address)
        page.get_by_label("Address").fill(server.url)
        button(page, "Open").click()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("location.hash").startswith("#toy?")
        assert {field: page.input_value(field) for field in fields} == fields
        assert bars(page, 1).all_inner_texts() == shown
        expect(page.locator("#bars .side").nth(1)).to_have_class("side tied")
        expect(page.locator("#toyin input").first).to_have_value("2.5")
        show(page, "parts")
        expect(button(page, "head 1 of block 2")).to_have_attribute("aria-pressed", "true")


def test_fourteen_pages_of_which_one_is_closed_while_it_writes(open_page, server):
    first, *others = [open_page(server) for _ in range(14)]
    assert [bars(page).count() for page in others] == [14] * 13
    follow(first, [("#write", "#written .w >> nth=0", True)])
    first.close()
    follow(others[0], [WRITE])


def test_a_busy_server_is_said(open_page, server, monkeypatch):
    monkeypatch.setattr("tiedgpt.explore.server.REQUEST", 0.2)
    page = open_page(server)
    page.allowed = ["503"]
    page.wait_for_selector("#repair td")
    monkeypatch.setattr("tiedgpt.explore.server.CONNECTIONS", 0)
    page.wait_for_timeout(400)
    follow(page, [(("#prompt", "ROMEO:\n"), "#problem", "Close other pages of it")])


def test_bars_move_while_typing_faster_than_the_model(open_page):
    views = shakespeare()
    whole, held = views.next, threading.Event()
    views.next = lambda *asked: held.wait(0.1) or whole(*asked)
    page = open_page(views)
    page.evaluate("""() => { window.drawn = 0; const seen = new MutationObserver(() => window.drawn++);
        seen.observe(document.querySelector("#bars"), { childList: true }); }""")
    for letter in (
        "my lord and the king " * 10
    ):  # until they have moved; a busy machine takes longer
        page.locator("#prompt").press_sequentially(letter, delay=40)
        if (drawn := page.evaluate("window.drawn")) >= 3:
            break
    assert drawn >= 3
    expect(page.locator("#live")).to_contain_text("Likeliest next token: shakespeare-tied:")
    assert page.locator("[aria-live=polite]").count() == 1


POST = """async ([url, mode, type]) => { try { const r = await fetch(url, { method: 'POST', mode,
    body: '{"text": "a"}', headers: { 'Content-Type': type } }); return r.type + r.status; }
    catch (error) { return 'refused'; } }"""


def test_a_rebound_name_and_another_site_get_nothing(chromium, server):
    """A page of evil.example, whose name now has this machine's address, even if it knew the
    secret."""
    page = chromium.new_page()
    url = f"http://evil.example:{server.server_port}/{server.secret}/"
    assert page.goto(url).status == 403
    assert page.evaluate(POST, [url + "next", "cors", "application/json"]) == "basic403"
    page.route("http://other.example/", lambda route: route.fulfill(body="<p>hello"))
    page.goto("http://other.example/")
    for asked in ("no-cors text/plain", "cors application/json", "no-cors application/json"):
        assert page.evaluate(POST, [server.url + "quit", *asked.split()]) in ("refused", "opaque0")
    frame = "url => { const f = document.createElement('iframe'); f.src = url; document.body.append(f); }"
    page.evaluate(frame, server.url)
    page.wait_for_timeout(300)
    assert page.frames[-1].locator("#prompt").count() == 0  # the page lets no site frame it
    page.close()
    assert not server.stopping


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
def test_axe_finds_nothing_and_nothing_is_cut(open_page, server, scheme, width):
    size = {"width": width, "height": 900}
    page = open_page(server, color_scheme=scheme, viewport=size, reduced_motion="reduce")
    follow(page, [WRITE])
    for panel in PANELS:
        show(page, panel)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, panel
    if width == 390:
        assert page.locator(".code pre:visible").count() == 1  # the others are folded
    follow(page, [("#sampling summary", "#top_k", True), MLP])
    found = Axe().run(page, options={"rules": {"target-size": {"enabled": True}}})
    nodes = [
        (v["id"], [node["html"][:150] for node in v["nodes"][:3]])
        for v in found.response["violations"]
    ]
    assert nodes == []
    small = page.locator(
        "button:visible, input:visible, summary:visible, select:visible"
    ).evaluate_all(
        "all => all.filter(e => Math.min(e.offsetWidth, e.offsetHeight) < 24).map(e => e.outerHTML)"
    )
    assert small == []


def test_the_keyboard_reaches_everything(open_page, server):
    page = open_page(server, reduced_motion="reduce")
    show(page)
    page.click("#sampling summary")
    page.locator(".skip").focus()
    focused = """() => { const e = document.activeElement, box = e.parentElement.closest('[id]');
        return e === document.body ? [] : [e.id, e.dataset.key, box?.id]; }"""
    reached = [["", "", ""]]
    while reached[-1] and len(reached) < 400:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focused))
    assert not reached.pop(), "Tab never leaves the page"
    wanted = "prompt copy temperature top_k top_p write seed matrices solve dims solveW W00 partsbox heads"
    wanted += " cvocab ctotal quit draw0 strip bars turn paths"
    assert set(wanted.split()) <= set().union(*reached)
    assert (
        sum(str(key).startswith("bar") for _, key, _ in reached) == 2
    )  # one stop for all bars of a model
    page.locator("#matrices td[data-i='2'][data-j='3']").first.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    on = page.locator("#matrices td.on").first
    assert (on.get_attribute("data-i"), on.get_attribute("data-j")) == ("3", "4")
    page.locator("#heads button").first.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#attnbox h3")).to_have_text("block 1, head 0")
    assert page.evaluate("document.activeElement.dataset.key") == "head1.0"  # the focus stays


def test_the_exported_page_opens_from_disk_without_a_network(open_page, tmp_path):
    views = shakespeare()
    text = export(views)
    assert len(text.encode()) <= 1_500_000
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = open_page(
        SimpleNamespace(origin="file:", url=f"file://{tmp_path}/page.html"), offline=True
    )
    for example in page.locator("#examples button").all():
        example.click()
        expect(page.locator("#prompt")).to_have_value(
            re.compile(re.escape(example.inner_text().split()[-1]))
        )
        for panel in PANELS:
            show(page, panel)
            assert page.locator(".warn:visible, #problem:visible").count() == 0, panel
        follow(page, [(f"{UNTIED} >> text='W_E.T'", "#bars .side.tied", 2)])
        query = {"text": page.input_value("#prompt"), "side": 1, "head": "tied"}
        token = views.next(query, lambda *_: None)["rows"][0]["text"]
        expect(bars(page, 1).first.locator(".t")).to_have_text(
            token.replace(" ", "·").replace("\n", "⏎")
        )
        page.click(f"{UNTIED} >> text='W_U'")
        # The panel may be drawn again between press and release of a mouse, and then no button is
        # clicked.
        button(page, "the MLP of block 3").scroll_into_view_if_needed()
        button(page, "the MLP of block 3").dispatch_event("click")
        expect(page.locator("#partsout")).to_contain_text("Without the MLP of block 3")
        button(page, "Put all parts back").click()
        follow(page, [("with the first MLP", "#mirror", "≠"), WRITE])
    follow(page, [("#solve", "#solved", "3.37")])
