"""Write scripts/tied.html, the article as one file.

    python scripts/make_page.py

The sources are in tiedgpt/explore/article/.
"""

from pathlib import Path

from tiedgpt.explore.article import article_page

PAGE = Path(__file__).with_name("tied.html")


def main() -> None:
    PAGE.write_bytes(article_page().encode())
    print(f"{PAGE.name}: {PAGE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
