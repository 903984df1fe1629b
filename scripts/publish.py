"""Write the address of the repository, which pyproject.toml names, into each file that shows it.

    python scripts/publish.py
    python scripts/publish.py --check    changes nothing; exit code 1 if a file says something else

The address is the line `Repository = "https://..."` below [project.urls] in pyproject.toml. Without
that line, the files are those of a repository that is not published. The addresses of badges, of
the notebook on Colab and of the pages are known for a repository on GitHub.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r'^Repository = "(https://[^"]+?)/?"$', re.MULTILINE)
GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+)", re.ASCII)


@dataclass(frozen=True)
class Place:
    """A text in a file that depends on the address, which is {repository} in it."""

    file: str
    pattern: str  # finds the text, with an address and without
    unpublished: str
    published: str
    # {owner} and {name} are of a repository on GitHub. On another host the text is `unpublished`.
    only_github: bool = False


BADGE = "[![CI]({repository}/actions/workflows/ci.yml/badge.svg)]({repository}/actions)"
PAGES = "https://{owner}.github.io/{name}"
COLAB = "https://colab.research.google.com/github/{owner}/{name}/blob/main/scripts/lecture.ipynb"
NOTEBOOK = "[lecture.ipynb](lecture.ipynb)"
ICON = '<link rel="icon"'

PLACES = [
    Place(
        "README.md",
        pattern=r"\A# tiedgpt\n(\n\[!\[CI.*\n)?",
        unpublished="# tiedgpt\n",
        published=f"# tiedgpt\n\n{BADGE}\n",
        only_github=True,
    ),
    Place(
        "README.md",
        pattern=r"(?<=git clone )\S+",
        unpublished="ADDRESS-OF-THIS-REPOSITORY",
        published="{repository}",
    ),
    Place(
        "README.md",
        pattern=r"(?<=  url = \{)[^}]*",
        unpublished="ADDRESS-OF-THIS-REPOSITORY",
        published="{repository}",
    ),
    Place(
        "CITATION.cff",
        pattern=r"^(repository-code: .*\n)?license:",
        unpublished="license:",
        published='repository-code: "{repository}"\nlicense:',
    ),
    Place(
        "scripts/make_notebook.py",
        pattern=r'(?<=^REPOSITORY = ")[^"]*',
        unpublished="https://ADDRESS/tiedgpt",
        published="{repository}",
    ),
    Place(
        "scripts/lecture.ipynb",
        pattern=r'(?<=REPOSITORY = \\")[^"\\]*',  # in JSON, a quotation mark has a backslash
        unpublished="https://ADDRESS/tiedgpt",
        published="{repository}",
    ),
]
for lecture in ("scripts/lecture.md", "scripts/lecture.ipynb"):
    PLACES.append(
        Place(
            lecture,
            pattern=re.escape(NOTEBOOK) + r"( \(\[on Colab\]\([^)]*\)\))?",
            unpublished=NOTEBOOK,
            published=f"{NOTEBOOK} ([on Colab]({COLAB}))",
            only_github=True,
        )
    )
# The article says it in its source, and in the page that is made of it.
for page in ("tiedgpt/explore/article/index.html", "tiedgpt/explore/tied.html"):
    PLACES += [
        Place(
            page,
            pattern=rf'(<link rel="canonical".*\n)?{ICON}',
            unpublished=ICON,
            published=f'<link rel="canonical" href="{PAGES}/tied.html">\n{ICON}',
            only_github=True,
        ),
        Place(
            page,
            pattern=r'(?<="og:image" content=")[^"]*',
            unpublished="tied.png",
            published=f"{PAGES}/tied.png",
            only_github=True,
        ),
    ]


def address_of(root: Path) -> str | None:
    """The address that pyproject.toml names; None for a repository that is not published."""
    match = ADDRESS.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    return match[1] if match else None


def text_at(place: Place, address: str | None) -> str:
    """What stands at a place of a repository with this address."""
    if address is None:
        return place.unpublished
    names = {"repository": address}
    on_github = GITHUB.fullmatch(address)
    if on_github:
        names["owner"], names["name"] = on_github.groups()
    elif place.only_github:
        return place.unpublished
    return place.published.format_map(names)


def published_files(root: Path) -> dict[Path, str]:
    """What each file with a place must hold. Exits if a place is not found once in its file."""
    address = address_of(root)
    contents: dict[Path, str] = {}
    for place in PLACES:
        path = root / place.file
        before = contents.get(path) or path.read_bytes().decode()  # a file may have several places
        found = list(re.finditer(place.pattern, before, re.MULTILINE))
        if len(found) != 1:
            times = len(found)
            sys.exit(f"publish.py: error: {place.file}: {place.pattern} is there {times} times")
        start, end = found[0].span()
        contents[path] = before[:start] + text_at(place, address) + before[end:]
    return contents


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout than this one")
    args = parser.parse_args()
    changed = []
    for path, content in published_files(args.root).items():
        if path.read_bytes().decode() != content:
            changed.append(path.relative_to(args.root).as_posix())
            if not args.check:
                path.write_bytes(content.encode())
    for file in changed:
        print(file)
    if args.check and changed:
        sys.exit("these files do not say the address of pyproject.toml: run scripts/publish.py")


if __name__ == "__main__":
    main()
