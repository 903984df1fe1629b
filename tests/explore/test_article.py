"""The article as one file: what stands in it, its weights, and that the built file is current."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from page import article
from page.article import article_page, rounded

import tiedgpt
from tiedgpt.checkpoints.model_names import SHIPPED

BUILT = Path(tiedgpt.__file__).parent / "explore" / "tied.html"


@pytest.fixture(scope="module")
def page():
    return article_page()


def test_the_built_file_is_current_and_small(page):
    """If it is not: python scripts/make_page.py."""
    assert BUILT.read_bytes() == page.encode()
    assert len(page.encode()) <= 3_000_000


def test_the_page_asks_for_nothing_and_runs_its_own_scripts_alone(page):
    assert not re.search(
        r"""<(?!a\b|link rel="canonical")[^<>]* (src|href)=(?!["']?(data:|#))"""
        r"""|@import|url\((?!data:)""",
        page,
    )
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|eval)\b|import\(", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", page)
    assert not re.search(r"\son\w+=\"|\sstyle=\"", page)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for kind, tag in (("script", '<script type="module">'), ("style", "<style>")):
        (text,) = re.findall(f"{tag}(.*?)</{kind}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


def test_each_source_of_the_article_is_in_the_page(page):
    for file in article.ARTICLE.iterdir():
        if file.suffix == ".js":
            assert file.name in article.MODULES
    assert "\nimport " not in page
    assert "\nexport " not in page


def test_a_text_in_the_data_cannot_end_its_element():
    assert json.loads(article.json_in_html("</script>é")) == "</script>é"
    assert "<" not in article.json_in_html("</script>")


@pytest.mark.parametrize("name", SHIPPED)
def test_rounding(name):
    """A rounded number differs by half a step at most."""
    parameters = tiedgpt.load_model(name).parameters
    arrays = rounded(parameters)
    for name, array in parameters.items():
        if array.ndim == 1:
            assert arrays[name] is array
            continue
        scale = arrays[f"{name}.scale"].astype(np.float32)[:, None]
        assert arrays[name].dtype == np.int8
        assert (np.abs(arrays[name] * scale - array) <= 0.501 * scale).all()
