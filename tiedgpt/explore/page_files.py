"""The files of the page, in page/."""

from importlib.resources import files

MODULES = (  # each imports only from those before it
    "draw.js",
    "state.js",
    "flow.js",
    "next.js",
    "path.js",
    "toy.js",
    "lens.js",
    "parts.js",
    "attention.js",
    "gradient.js",
    "cost.js",
    "page.js",
)
FILE_OF_PATH = {"": "page.html", "page.css": "page.css"}  # path below the secret -> file
for name in MODULES:
    FILE_OF_PATH[name] = name

CONTENT_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def read_page_file(name: str) -> bytes:
    """The contents of a file of page/."""
    return (files(__package__) / "page" / name).read_bytes()


def content_type(name: str) -> str:
    """The media type of a file of page/, by the end of its name."""
    _, _, extension = name.rpartition(".")
    return CONTENT_TYPES[extension]
