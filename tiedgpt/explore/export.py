"""The page as one file that needs no server: its scripts, its style and the recorded answers of the
views."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from ..study import toy
from ..study.paths import paths_of
from .server import MODULES
from .views import Query, Views, to_json

SAMPLING = {"temperature": 1, "top_k": None, "top_p": 1}  # of the page at its start
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def export(views: Views) -> str:
    """A page of HTML that shows the models on the example prompts. It answers no text that is
    typed."""
    recorded = {}
    for view, query in questions(views):
        found = getattr(views, view)(query, lambda *_, part=None: None)
        lines = [found] if isinstance(found, dict) else [*found]
        recorded[f"{view} {spelled(sorted(query.items()))}"] = lines
    page = files(__package__) / "page"
    text, style, *modules = (
        (page / name).read_text("utf-8") for name in ("page.html", "page.css", *MODULES)
    )
    script = re.sub(r'^import\b[^"]*"[^"]*"$|^export ', "", "".join(modules), flags=re.M)
    for old, new in (
        ('<link rel="stylesheet" href="page.css">', f"<style>\n{style}</style>"),
        ('<script type="module" src="page.js"></script>\n', ""),
        ("<title>", f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>'),
        (
            "</body>",
            f'<script type="application/json" id="recorded">{spelled(recorded)}</script>\n</body>',
        ),
        ("</body>", f'<script type="module">\n{script}</script>\n</body>'),
    ):
        assert old in text, f"page.html has no {old}"
        text = text.replace(old, new)
    return text


def questions(views: Views) -> Iterator[tuple[str, Query]]:
    """What the page asks for when it shows the example prompts, with each head and without each
    part."""
    yield "start", {}
    yield "toy", {"W_E": [*map(list, toy.EMBEDDING)], "P": [*map(list, toy.TABLE)]}
    yield "cost", {"vocab": 50_000, "dim": 4096, "total": 7 * 10**9}
    for side, by_head in enumerate(views.by_head):
        for number, (head, model) in enumerate(
            by_head.items()
        ):  # the model's own head is the first
            own: Query = {"side": side, "head": head}
            yield "symmetry", own
            if views.corpus and not number:
                yield "solved", own
            for text in views.prompts:
                query = {**own, "text": text, "ids": None, "place": None}
                yield "next", {**query, **SAMPLING}
                yield "generate", {**query, **SAMPLING, "n": 40, "seed": 1}
                views_of_text = (
                    "lens",
                    "nearest",
                    "gradient",
                    *["attention"] * (model.config.n_layer > 0),
                )
                yield from ((view, query) for view in views_of_text)
                yield from (("path", {**query, "path": path}) for path in paths_of(model))
                parts = views.parts(query, lambda: None)["parts"] if not number else ()
                removed = [[name] for name in parts if re.search(r"head|^mlp\.\d+$", name)]
                yield from (
                    ("parts", {**query, "token": None, "removed": names})
                    for names in ([], *removed)
                )


def spelled(document: Any) -> str:
    """JSON as JavaScript writes it, with five digits of each number, and safe inside a script
    element."""

    def short(number: str) -> float:
        x = float(f"{float(number):.5g}")
        return int(x) if x.is_integer() else x

    shortened = json.loads(to_json(document), parse_float=short)
    return json.dumps(shortened, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
