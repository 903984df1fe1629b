"""Write the pages of this repository as a site: HTML that needs no server.

    pip install -e '.[docs]'
    python scripts/make_site.py DIRECTORY

The pages are the Markdown files of PAGES, the article, and a page that is made of the docstrings of
the stable names. Links from page to page stay. A link to another file of the repository leads to
the address in pyproject.toml (scripts/publish.py); without one, its text alone stays.
"""

import argparse
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from publish import address_of

import tiedgpt
from tiedgpt import testing

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "scripts" / "site"
PAGES = {  # a file -> its page
    "README.md": "index.md",
    "scripts/lecture.md": "lecture.md",
    "scripts/exercises.md": "exercises.md",
    "scripts/tying_results/README.md": "tying.md",
    "scripts/tying_results/claims.md": "claims.md",
    "scripts/tying_results/floor.md": "floor.md",
    "scripts/head.md": "head.md",
    "scripts/ports.md": "ports.md",
    "scripts/README.md": "scripts.md",
    "weights/README.md": "formats.md",
    "CHANGELOG.md": "changelog.md",
}
ARTICLE = ("tiedgpt/explore/tied.html", "scripts/tied.png")
# The label of a link may hold a picture, which is written like a link.
PICTURE = r"!\[[^][]*\]\([^)]*\)"
LINK = re.compile(rf"\[(?P<label>(?:{PICTURE}|[^][])*)\]\((?P<target>[^)\s]+)\)")
FOREIGN_PICTURE = re.compile(r"!\[([^][]*)\]\(https?:[^)]*\)")  # a badge: its text stays
TESTING = ("assert_same_gpt2", "assert_tied", "random_model")
CONTENTS = """
```{{toctree}}
:hidden:

{pages}
```
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="a new directory")
    args = parser.parse_args()
    if args.directory.exists():
        parser.exit(2, f"make_site.py: error: {args.directory} is there already\n")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        write_source(source)
        # -W --keep-going: a warning is an error, and all are shown.
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
        subprocess.run([*command, str(source), str(args.directory)], check=True)
    faults = list(broken_links(args.directory))
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        parser.exit(1, "make_site.py: error: links lead nowhere\n")


def write_source(source: Path) -> None:
    """Write what Sphinx reads: the pages, their pictures, the article."""
    shutil.copy(SITE / "conf.py", source)
    (source / "static").mkdir()
    page, picture = ARTICLE
    article = (ROOT / page).read_text(encoding="utf-8")
    # The article names files as its sources. The name of one that is a page here becomes a link.
    for file, name in PAGES.items():
        link = f'<a href="{name.removesuffix(".md")}.html"><code>{file}</code></a>'
        article = article.replace(f"<code>{file}</code>", link)
    (source / "static" / Path(page).name).write_text(article, encoding="utf-8")
    shutil.copy(ROOT / picture, source / "static")
    for file, page in PAGES.items():
        (source / page).write_text(page_of(file, source), encoding="utf-8")
    pages = [page.removesuffix(".md") for page in PAGES.values() if page != "index.md"]
    with (source / "index.md").open("a", encoding="utf-8") as index:
        index.write(CONTENTS.format(pages="\n".join(["api", *pages])))
    (source / "api.md").write_text(api_page(), encoding="utf-8")


def page_of(file: str, source: Path) -> str:
    """The text of a page, with links that hold in the site. Its pictures are copied."""

    def new_link(match: re.Match[str]) -> str:
        # The label may be a picture, which is a link too: to its file.
        label = LINK.sub(new_link, match["label"])
        return link_in_site(label, match["target"], (ROOT / file).parent, source)

    text = (ROOT / file).read_text(encoding="utf-8")
    return LINK.sub(new_link, FOREIGN_PICTURE.sub(r"\1", text))


def link_in_site(label: str, target: str, folder: Path, source: Path) -> str:
    """A link of a page in `folder` as it stands in the site."""
    path, hash_sign, title = target.partition("#")
    if path == "" or re.match(r"[a-z]+:", target):  # in the same page, or to another site
        return f"[{label}]({target})"
    file = (folder / path).resolve().relative_to(ROOT).as_posix()
    if file in PAGES:
        return f"[{label}]({PAGES[file]}{hash_sign}{title})"
    if file == "tiedgpt/explore/tied.html":
        return f'<a href="tied.html">{label}</a>'
    if file.endswith(".png"):
        shutil.copy(ROOT / file, source)
        return f"[{label}]({Path(file).name})"
    address = address_of(ROOT)
    if address is None:
        return label
    return f"[{label}]({address}/blob/main/{file}{hash_sign}{title})"


def api_page() -> str:
    """A page of the stable names: how each is called, and its docstring."""
    parts = [(SITE / "api.md").read_text(encoding="utf-8")]
    names = {f"tiedgpt.{name}": getattr(tiedgpt, name) for name in sorted(tiedgpt.__all__)}
    for name in TESTING:
        names[f"tiedgpt.testing.{name}"] = getattr(testing, name)
    for name, value in names.items():
        parts.append(f"## {name}\n\n{documented(name, value)}")
        if inspect.isclass(value):
            for method, member in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_") and inspect.getdoc(member):
                    full_name = f"{name}.{method}"
                    parts.append(f"### {full_name}\n\n{documented(full_name, member)}")
    return "\n\n".join(parts) + "\n"


def documented(name: str, value: Any) -> str:
    """How a function or class is called, and its docstring, as it stands in the code."""
    docstring = inspect.getdoc(value) or ""
    return f"```python\n{name}{inspect.signature(value)}\n```\n\n```text\n{docstring}\n```"


# The links of the pages that are written


class Page(HTMLParser):
    """The links of a page, and the names in it to which a link may lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.titles: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if values.get("id"):
            self.titles.add(values["id"] or "")
        is_hidden = "hidden" in values  # the article's link to the laboratory, which has a server
        for name in ("href", "src"):
            if values.get(name) and not is_hidden:
                self.links.append(values[name] or "")


def broken_links(site: Path) -> Iterator[str]:
    """A sentence for each link that leads to no file or title of the site.

    A style, a script or a picture of another server is one too. A link to another server is not
    followed.
    """
    pages = {path: Page(path) for path in site.glob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"(https?|mailto|data):", link):
                continue
            target, _, title = unquote(link).partition("#")
            file = path.parent / target.partition("?")[0] if target else path
            if not file.is_file():
                yield f"{path.name}: {link}: no such file"
            elif title and file in pages and title not in pages[file].titles:
                yield f"{path.name}: {link}: no such title"


if __name__ == "__main__":
    main()
