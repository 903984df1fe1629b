"""The article: one HTML file with everything in it, which opens without a server.

Its sources are in tiedgpt/explore/article/. It shares page/elements.js and page/style.css with the
laboratory. `article_page` puts the styles, the modules, the figures that Python has computed, and
the weights of both shipped models into index.html. The file asks for nothing else, and its
Content-Security-Policy lets a browser run these scripts and no others.

A matrix is rounded to whole numbers from -127 to 127, with a scale for each of its rows. So the
weights are a quarter as large. make_page.py writes the file, and `tiedgpt explore` serves it.
"""

import base64
import hashlib
import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tiedgpt.checkpoints import find_model, load_model, safetensors
from tiedgpt.checkpoints.model_names import SHIPPED
from tiedgpt.checkpoints.vocabulary import MERGES_AND_VOCAB
from tiedgpt.gpt2.parameters import Parameters

from .pictures import filled

ARTICLE = Path(__file__).parents[2] / "tiedgpt" / "explore" / "article"
# A module stands after its imports.
ENGINE = ("tokenizer.js", "gpt2.js", "data.js")
ELEMENTS = "../page/elements.js"  # it is the laboratory's, too
MODULES = (*ENGINE, ELEMENTS, "words.js", "rows.js", "drag.js", "cost.js", "article.js")
# In index.html
STYLES = """<link rel="stylesheet" href="../page/style.css">
<link rel="stylesheet" href="article.css">"""
SCRIPT = '<script type="module" src="article.js"></script>'


def read(name: str) -> str:
    """A source of the article."""
    return (ARTICLE / name).read_text(encoding="utf-8")


def modules(*names: str) -> str:
    """The modules as one. No two have the same name at their top, so `import` is not needed."""
    sources = []
    for name in names:
        without_imports = re.sub(r'^import [^"]*"[^"]*"\n', "", read(name), flags=re.MULTILINE)
        sources.append(re.sub(r"^export ", "", without_imports, flags=re.MULTILINE))
    return "\n".join(sources)


def article_page() -> str:
    """The whole article as one HTML file."""
    figures = json.loads(read("figures.json"))
    page = filled(read("index.html"), figures)
    style = read("../page/style.css") + read("article.css")
    script = modules(*MODULES)
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    policy_tag = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace(STYLES, f"{policy_tag}\n<style>{style}</style>")

    # What the script draws anew; the other figures stand in the page already.
    for_script = {name: figures[name] for name in ("tokens", "rows", "toy")}
    data = data_block("figures", for_script) + data_block("models", shipped_models())
    return page.replace(SCRIPT, f'{data}<script type="module">{script}</script>')


def data_block(name: str, value: Any) -> str:
    """An element with data that data.js finds by its id."""
    return f'<script type="application/json" id="{name}">{json_in_html(value)}</script>\n'


def digest(text: str) -> str:
    """How a Content-Security-Policy names a script or a style that stands in the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_in_html(value: Any) -> str:
    """JSON that may stand in a <script>: there is no "<" in it that could end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def shipped_models() -> dict[str, Any]:
    """What data.js reads: the tokens of both shipped models, and each model by its head."""
    merges_name, vocabulary_name = MERGES_AND_VOCAB
    _, folder = find_model(SHIPPED[0])
    vocabulary = json.loads((folder / vocabulary_name).read_text(encoding="utf-8"))
    models: dict[str, Any] = {
        "merges": (folder / merges_name).read_text(encoding="utf-8"),
        "tokens": sorted(vocabulary, key=vocabulary.__getitem__),  # a token's place is its id
    }
    for name in SHIPPED:
        model = load_model(name)
        file = BytesIO()
        safetensors.write(file, rounded(model.parameters).items(), exact=True)
        weights = base64.b64encode(file.getvalue()).decode()
        models[model.config.head] = {"config": model.config.to_json(), "weights": weights}
    return models


def rounded(parameters: Parameters) -> dict[str, np.ndarray]:
    """Each matrix [n, m] becomes int8, with the scales [n] of its rows, in float16, as NAME.scale.

    Other arrays stay as they are.
    """
    arrays = {}
    for name, array in parameters.items():
        arrays[name] = array
        if array.ndim == 2:
            scale = (np.abs(array).max(axis=1) / 127).astype(np.float16)  # [n]
            arrays[name] = np.rint(array / scale[:, None]).astype(np.int8)
            arrays[f"{name}.scale"] = scale
    return arrays
