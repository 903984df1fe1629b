"""tests/ledger.md: each claim of the debate has a place that answers it, and the place is there."""

import html
import re
from functools import cache
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


@cache
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


def test_the_places_of_the_claims_are_there():
    not_there = []
    for claim, path, words in PLACES:
        words = html.unescape(words)  # a bar would end a cell
        assert len(words) >= 8, f"{claim}: too few words to tell a place"
        if words not in text_of(path):
            not_there.append((claim, path, words))
    assert not_there == []
    assert len(PLACES) > 100


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
