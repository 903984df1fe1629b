"""The page as one file that needs no server: its scripts, its style and the recorded answers of the views."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from typing import Any

from ..study import toy
from ..study.paths import paths_of
from .server import MODULES
from .views import Query, Views

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def export(views: Views) -> str:
    """A page of HTML that shows the models on the example prompts. It answers no text that is typed."""
    recorded = {}
    for view, query in questions(views):
        found = getattr(views, view)(query, lambda *_, part=None: None)
        recorded[f"{view} {spelled(sorted(query.items()))}"] = (
            [found] if isinstance(found, dict) else [*found]
        )
    page = files(__package__) / "page"
    text, style, *modules = ((page / name).read_text("utf-8") for name in ("page.html", "page.css", *MODULES))
    script = re.sub(r"^import\b[^;]*;$|^export ", "", "".join(modules), flags=re.M)
    for old, new in (
        ('<link rel="stylesheet" href="page.css">', f"<style>\n{style}</style>"),
        ('<script type="module" src="page.js"></script>\n', ""),
        ("<title>", f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>'),
        ("</body>", f'<script type="application/json" id="recorded">{spelled(recorded)}</script>\n</body>'),
        ("</body>", f'<script type="module">\n{script}</script>\n</body>'),
    ):
        assert old in text, f"page.html has no {old}"
        text = text.replace(old, new)
    return text


def questions(views: Views) -> Iterator[tuple[str, Query]]:
    """What the page asks for when it shows the example prompts, with each head and without each part."""
    yield from (("start", {}), ("source", {}))
    yield "toy", {"W_E": [*map(list, toy.EMBEDDING)], "P": [*map(list, toy.TABLE)]}
    yield "params", {"vocab": 50_000, "dim": 4096, "total": 7 * 10**9}
    own, *others = ({"heads": list(heads)} for heads in product(*(side.models for side in views.sides)))
    if views.corpus:
        yield "solved", own
    for heads in (own, *others):
        yield "symmetry", heads
    for text in views.prompts():
        for heads in (own, *others):
            query: Query = {**heads, "text": text}
            yield from ((view, query) for view in ("next", "lens", "nearest"))
            yield "generate", {**query, "n": 40, "seed": 1}
            paths = [paths_of(model) for model in views.models(query)]
            yield from (("path", {**query, "path": path}) for path in min(paths, key=len))
            for side in range(len(views.sides)):
                of_side = {**query, "side": side}
                yield from (("attention", of_side), ("gradient", of_side))
                parts = views.parts({**of_side, "removed": []}, lambda: None)["parts"] if heads is own else ()
                removable = [[name] for name in parts if re.search(r"head|^mlp\.\d+$", name)]
                yield from (("parts", {**of_side, "removed": removed}) for removed in ([], *removable))


def spelled(document: Any) -> str:
    """JSON as JavaScript writes it, with five digits of each number, and safe inside a script element."""

    def short(number: str) -> float:
        x = float(f"{float(number):.5g}")
        return int(x) if x.is_integer() else x

    shortened = json.loads(json.dumps(document, allow_nan=False), parse_float=short)
    return json.dumps(shortened, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
