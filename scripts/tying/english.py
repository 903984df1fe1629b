"""Make the text of the registered experiment: 20 MB of English prose from three Debian packages.

    python scripts/tying/english.py DIRECTORY

It downloads the packages of Debian 12 with apt-get, checks them, and writes three files into the
directory:

    train.txt       what models are trained on
    choose.txt      what chooses their learning rates and starts, and is used for nothing else
    held-out.txt    what measures them

A document is a psalm in Spurgeon's Treasury of David, a book of the Bible in Matthew Henry's
Concise Commentary, or a page of An Anarchist FAQ. Every document is in one file alone. A paragraph
that stands in the packages more than once is kept where it comes first, so that held-out text was
not trained on.

The SHA-256 of packages and files stand below. The text is not part of this repository: each package
has its own license, in usr/share/doc of the package.
"""

import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import unescape
from pathlib import Path

PACKAGES = {  # name and version -> SHA-256 of the .deb
    "sword-comm-tdavid=2.1-1": "bcbfad701c5c4a061475b58309cebc42755a59e87478c8355227c5e046412b3f",
    "sword-comm-mhcc=2.0-1": "06f748215de78ff48fdfdee93e3ffc5af6318b976485f7aedf22309236967e35",
    "anarchism=15.3-3": "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
}
FILES = {  # the file -> its SHA-256
    "train.txt": "f80b09cc79db55d50f7f350f25cf8fb00245685a644d0d95e1f6e8f0a0735196",
    "choose.txt": "3de6d2b5cd7efb003788141ed066a3bce948fc14fda6379f9e25a03a5d480e6e",
    "held-out.txt": "f47faa1ce9edd9f18c4d985de1f4b00a30f57265baac4eb6fffdad7cc57714b2",
}
# Of 20 documents of a package, which go to which file. All others are trained on.
CHOOSE = 4
HELD_OUT = 14
# Curly quotes, dashes and the space that does not break, as they are typed
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u00a0", "''\"\"-- ")
# The elements that begin and end a paragraph
BREAKS = re.compile(r"(?i)</?(p|div|br|h\d|li|ul|ol|dd|dt|blockquote|title|td|tr|hr)\b[^>]*>")
SHORTEST = 80  # characters of a paragraph: shorter ones are titles, links and lists


def sword_documents(folder: Path) -> Iterator[str]:
    """The documents of a package of the SWORD project: blocks of compressed XML.

    A file of 12 bytes for each block says where it begins, and how long it is: *.bzs and *.bzz if
    a block is a book, *.czs and *.czz if it is a chapter.
    """
    for index in sorted(folder.rglob("*.[bc]zs"), reverse=True):  # the Old Testament first
        blocks = index.with_suffix(index.suffix.replace("s", "z")).read_bytes()
        for start, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            if size:
                yield zlib.decompress(blocks[start : start + size]).decode("utf-8", "replace")


def html_documents(folder: Path) -> Iterator[str]:
    """The pages of An Anarchist FAQ."""
    for page in sorted(folder.rglob("*.html")):
        yield page.read_text(encoding="utf-8", errors="replace")


def paragraphs(document: str) -> Iterator[str]:
    """The paragraphs of XML or HTML, each in one line, in plain ASCII where that is possible."""
    # These elements are not prose.
    document = re.sub(r"(?s)<(script|style|head|note)\b.*?</\1>", " ", document)
    document = BREAKS.sub("\n\n", document)
    # The tags that are left stand inside paragraphs.
    document = unescape(re.sub(r"<[^>]*>", "", document))
    document = document.translate(PLAIN)
    for paragraph in re.split(r"\n\s*\n", document):
        words = " ".join(paragraph.split())
        if len(words) >= SHORTEST:
            yield words


def documents(package: str, folder: Path) -> Iterator[str]:
    if package.startswith("sword"):
        return sword_documents(folder)
    return html_documents(folder)


def download(directory: Path) -> None:
    """Put each package into the directory as NAME.deb, unless it is there."""
    for package in PACKAGES:
        path = directory / f"{package.partition('=')[0]}.deb"
        if path.exists():
            continue
        folder = directory / "download"
        folder.mkdir(exist_ok=True)
        # apt-get calls the file by the version as well, and escapes some characters of it.
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        (file,) = folder.glob("*.deb")
        file.replace(path)
        folder.rmdir()


class AnotherFile(Exception):
    """A file is not the one of which this program knows the SHA-256."""


def check(path: Path, expected: str) -> None:
    found = sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise AnotherFile(f"{path}: the SHA-256 is {found}, expected {expected}")


def split(packages: Iterable[Iterable[str]]) -> dict[str, list[str]]:
    """The paragraphs of each file, from the documents of each package."""
    parts: dict[str, list[str]] = {name: [] for name in FILES}
    seen: set[str] = set()
    for package in packages:
        for number, document in enumerate(package):
            part = {CHOOSE: "choose.txt", HELD_OUT: "held-out.txt"}.get(number % 20, "train.txt")
            for paragraph in paragraphs(document):
                if paragraph not in seen:
                    seen.add(paragraph)
                    parts[part].append(paragraph)
    return parts


def make(directory: Path) -> None:
    """Write the three files."""
    directory.mkdir(parents=True, exist_ok=True)
    download(directory)
    packages = []
    for package, expected in PACKAGES.items():
        name = package.partition("=")[0]
        deb = directory / f"{name}.deb"
        check(deb, expected)
        folder = directory / name
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        packages.append(documents(package, folder))
    for name, kept in split(packages).items():
        path = directory / name
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size:,} bytes, {sha256(path.read_bytes()).hexdigest()}")
        check(path, FILES[name])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: english.py DIRECTORY")
    try:
        make(Path(sys.argv[1]))
    except (AnotherFile, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"english.py: error: {error}")
