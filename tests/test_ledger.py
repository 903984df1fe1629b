"""tests/ledger.md: each claim of the debate has a place that answers it, and the place is there."""

import html
import re
from pathlib import Path

import pytest
from support.reference import SHARED

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / "tests" / "ledger.md"
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in LEDGER.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d:", line)
]
PLACES = [(row[0], row[3], row[4]) for row in ROWS if row[2] != "not"]


def text_of(path: str) -> str:
    """The words of a file, each line break a space; of HTML, without its tags and with them."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".html"):
        text = html.unescape(re.sub(r"<[^>]*>", "", text)) + text
    return " ".join(text.split())


def test_there_are_136_claims():
    ids = [row[0] for row in ROWS]
    assert len(ids) == len(set(ids)) == 136
    assert all(len(row) == 5 for row in ROWS)


@pytest.mark.parametrize(("claim", "path", "words"), PLACES, ids=[place[0] for place in PLACES])
def test_the_place_of_a_claim_is_there(claim, path, words):
    words = html.unescape(words)  # a bar would end a cell
    assert len(words) >= 8, "too few words to tell a place"
    assert words in text_of(path)


def test_a_claim_that_nothing_answers_says_why_and_others_say_their_state():
    for claim, _, state, path, words in ROWS:
        if state == "not":
            assert path == "", claim
            assert words != "", claim
        else:
            assert state == "answered" or state.startswith("partly: "), claim


def test_no_claim_was_left_out():
    source = SHARED / "tying" / "claims-136.md"
    if not source.exists():
        pytest.skip("the list of claims is not here")
    ids = re.findall(r"(?m)^\| (\d:\S.*?) \|", source.read_text(encoding="utf-8"))
    assert [row[0] for row in ROWS] == ids
