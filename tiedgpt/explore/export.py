"""The page as one file that needs no server.

It has the page's scripts, its style, and the views' answers for the example prompts.
`write_exported_page` writes it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..gpt2.run import OnProgress
from ..study import toy
from ..study.paths import paths_of
from ..writing import replaced_file
from .page_files import MODULES, read_page_file
from .shown import ShownModels
from .views import VIEWS
from .views.query import Query
from .views.registry import Answer, Turn, to_json

Fields = dict[str, Any]  # of a request
Question = tuple[str, Fields]  # the name of a view, and the fields that the page sends it

# The settings of the page at its start, as fields of its questions.
SAMPLING = {"temperature": 1, "top_k": None, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
WRITING = {**SAMPLING, "n": 40, "seed": 1}
COST = {"vocab": 50_000, "dim": 4096, "total": 7 * 10**9}

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
IMPORT_OR_EXPORT = re.compile(r'^import\b[^"]*"[^"]*"$|^export ', re.MULTILINE)
REMOVABLE_IN_PAGE = re.compile(r"head|^mlp\.\d+$")  # the parts that the page has buttons for


def write_exported_page(shown: ShownModels, file: Path, progress: OnProgress = None) -> int:
    """Write the page to a file, complete or not at all. Returns its size in bytes.

    `progress` is called with 1 after each of the `count_texts` texts.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(file) as page:
        return page.write(exported_page(shown, progress).encode())


def count_texts(shown: ShownModels) -> int:
    """How often a text is read: each example by each head of each model."""
    heads = sum(len(models) for models in shown.by_head)
    return heads * len(shown.prompts)


def exported_page(shown: ShownModels, progress: OnProgress = None) -> str:
    """The page as HTML. It shows the models on the example prompts, and answers no other text."""
    recorded = {}
    for name, fields in questions(shown, progress):
        # The page's script looks an answer up by this key, so it must make the same text of it.
        key = f"{name} {javascript_json(sorted(fields.items()))}"
        recorded[key] = recorded_answers(name, Query(shown, fields))
    return page_with(javascript_json(recorded))


def recorded_answers(name: str, query: Query) -> list[Answer]:
    """A view's answer, or all of them if it yields several."""
    answer = VIEWS[name](query, Turn())
    if isinstance(answer, dict):
        return [answer]
    return list(answer)


def page_with(recorded: str) -> str:
    """page.html with its style, its scripts and the recorded answers inside."""
    style = read_page_file("page.css").decode()
    # The modules become one, so nothing is imported or exported.
    modules = [read_page_file(name).decode() for name in MODULES]
    script = IMPORT_OR_EXPORT.sub("", "".join(modules))
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    recording = f'<script type="application/json" id="recorded">{recorded}</script>\n'

    page = read_page_file("page.html").decode()
    page = replaced(page, '<link rel="stylesheet" href="page.css">', f"<style>\n{style}</style>")
    page = replaced(page, '<script type="module" src="page.js"></script>\n', "")
    page = replaced(page, "<title>", f"{policy}<title>")
    scripts = f'{recording}<script type="module">\n{script}</script>\n'
    return replaced(page, "</body>", f"{scripts}</body>")


def replaced(page: str, old: str, new: str) -> str:
    """The page with `new` in place of `old`, which it must have."""
    assert old in page, f"page.html has no {old}"
    return page.replace(old, new)


def questions(shown: ShownModels, progress: OnProgress = None) -> Iterator[Question]:
    """What the page asks for when it shows the example prompts, with each head of each model.

    `progress` is called with 1 when the questions of a text are answered.
    """
    yield "start", {}
    three_words = {
        "W_E": [list(row) for row in toy.EMBEDDING],
        "P": [list(row) for row in toy.TABLE],
    }
    yield "toy", three_words
    yield "cost", COST
    for side, models in enumerate(shown.by_head):
        own_head = next(iter(models))  # a model's own head is the first one
        for head in models:
            of_model: Fields = {"side": side, "head": head}
            yield "symmetry", of_model
            # This fit takes longest. So the page has it for the model's own head only.
            if shown.corpus is not None and head == own_head:
                yield "solved", of_model
            for text in shown.prompts:
                of_text = {**of_model, "text": text, "ids": None, "place": None}
                yield from questions_of_text(shown, of_text)
                # Each part that is removed costs a forward pass and an answer in the file. So the
                # reader can remove parts only with the model's own head.
                with_removed = head == own_head
                yield from questions_of_parts(shown, of_text, with_removed)
                if progress is not None:
                    progress(1)


def questions_of_text(shown: ShownModels, of_text: Fields) -> Iterator[Question]:
    """What the page asks for about a text, a model and a head, without the parts of a logit."""
    model = Query(shown, of_text).model
    yield "next", {**of_text, **SAMPLING}
    yield "generate", {**of_text, **WRITING}
    yield "lens", of_text
    yield "nearest", of_text
    yield "gradient", of_text
    if model.config.n_layer > 0:
        yield "attention", of_text
    for path in paths_of(model):
        yield "path", {**of_text, "path": path}


def questions_of_parts(
    shown: ShownModels, of_text: Fields, with_removed: bool
) -> Iterator[Question]:
    """The parts of a logit and, `with_removed`, the predictions without each one of them."""
    with_all_parts = {**of_text, "token": None, "removed": []}  # None is the likeliest token
    yield "parts", with_all_parts
    if with_removed:
        (answer,) = recorded_answers("parts", Query(shown, with_all_parts))
        for part in answer["parts"]:
            if REMOVABLE_IN_PAGE.search(part):
                without_part = {**with_all_parts, "removed": [part]}
                yield "parts", without_part


def javascript_json(document: Any) -> str:
    """JSON as JavaScript writes it, with five digits of a number, and safe in a script element."""
    shortened = json.loads(to_json(document), parse_float=five_digits)
    text = json.dumps(shortened, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def five_digits(number: str) -> float:
    """A number with five digits; a whole one as an int, because JavaScript writes no ".0"."""
    x = float(f"{float(number):.5g}")
    if x.is_integer():
        return int(x)
    return x
