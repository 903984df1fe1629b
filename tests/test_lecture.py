"""scripts/lecture.md: its code prints the lines that it shows, and its links lead somewhere."""

import re
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
NUMBER = re.compile(r"-?\d+\.\d*")


def test_the_code_prints_what_the_lecture_shows(capsys):
    text = (SCRIPTS / "lecture.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    blocks, names = re.findall(r"```python\n(.*?)```", text, flags=re.S), {}
    assert len(blocks) == 13
    with np.printoptions():  # which the lecture changes
        for block in blocks:
            shown = [line[1:].removeprefix(" ") for line in block.splitlines() if line.startswith("#")]
            exec(block, names)
            printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
            assert [NUMBER.sub("0", line) for line in printed] == [NUMBER.sub("0", line) for line in shown]
            for x, y in zip(*(NUMBER.findall("\n".join(lines)) for lines in (printed, shown)), strict=True):
                last_digit = 10.0 ** -len(y.partition(".")[2])
                assert abs(float(x) - float(y)) < 1.01 * last_digit, block


@pytest.mark.parametrize("page", ["lecture.md", "exercises.md"])
def test_links(page):
    for link in re.findall(r"\]\((.*?)\)", (SCRIPTS / page).read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        assert (SCRIPTS / path).is_file(), link
        titles = re.findall(r"^##? (.*)", (SCRIPTS / path).read_text(encoding="utf-8"), flags=re.M)
        anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not anchor or anchor in anchors, link
