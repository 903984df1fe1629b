"""The files of the laboratory's page."""

import re

import pytest

from tiedgpt.explore.panels import PANELS, QUESTIONS
from tiedgpt.explore.server import PAGE

PAGE_FILES = {file.name: file.read_text(encoding="utf-8") for file in PAGE.iterdir()}


def test_the_page_has_the_declared_panels_and_questions():
    sections = re.findall(r'<section id="(\w+)"', PAGE_FILES["page.html"])
    assert sections == list(PANELS)
    scripts = "".join(text for name, text in PAGE_FILES.items() if name.endswith(".js"))
    asked = re.findall(r'(?:ask|answers?|panel)\(\s*"(\w+)"', scripts)  # for example ask("lens"
    assert set(asked) == {*QUESTIONS, "quit"}


@pytest.mark.parametrize("name", PAGE_FILES)
def test_a_file_of_the_page(name):
    """It asks no other machine, reads no text as HTML, and has nothing that the policy refuses."""
    text = PAGE_FILES[name]
    assert not re.search(r"https?:|@import", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", text)
    assert not re.search(r"\son\w+=\"|\sstyle=|<style|<script>", text)
    assert max(len(line) for line in text.expandtabs(2).splitlines()) <= 110
