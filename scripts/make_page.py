"""Write scripts/tied.html, the article as one file.

    python scripts/make_page.py
    python scripts/make_page.py tinyshakespeare.txt

The sources are in tiedgpt/explore/article/. With the text that the shipped models learned from, the
script also measures what the rounding of the weights costs, which takes a minute.
"""

import argparse
import json
from pathlib import Path

from page.rounding import rounding_costs

from tiedgpt.explore.article import article_page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "scripts" / "tied.html"
FIGURES = ROOT / "tiedgpt" / "explore" / "article" / "figures.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, nargs="?", help="tinyshakespeare.txt")
    args = parser.parse_args()
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    texts = figures.setdefault("texts", {})
    if args.text is not None:
        texts.update(rounding_costs(args.text.read_text(encoding="utf-8")))
    for name in ("rounding.tied", "rounding.untied"):
        print(f"{name}: {texts[name]} nats per token")
    FIGURES.write_text(json.dumps(figures), encoding="utf-8")
    PAGE.write_bytes(article_page().encode())
    print(f"{PAGE.name}: {PAGE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
