"""What the page asks for. A view takes a query, calls the library, and returns what it computed.

There is a module for each panel, with the name of its JavaScript file in page/. To add a view,
write a function with @view("its name") in the module of its panel (registry.py says what it takes
and returns). Then ask for it in the JavaScript file: `panel("its name", query, show)` draws a panel
with each new answer, `answer("its name", fields)` asks once.

The exported page has the answers to `questions` in export.py: add what the new view is asked. The
JavaScript file of a new panel is also added to MODULES in page_files.py, and imported in page.js.
"""

from . import attention, cost, gradient, lens, next, parts, path, start, toy
from .registry import VIEWS

__all__ = [
    "VIEWS",
    "attention",
    "cost",
    "gradient",
    "lens",
    "next",
    "parts",
    "path",
    "start",
    "toy",
]
