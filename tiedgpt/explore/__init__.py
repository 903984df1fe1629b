"""`tiedgpt explore`: a page that shows what the switch does, on the reader's own prompt.

    server.py     HTTP for this machine only: checks every request, one computation at a time
    views.py      what each request computes: arguments in, one library call, plain numbers out
    symmetry.py   how symmetric the scores of each path are
    source.py     the source code that stands beside each picture
    export.py     the page in one file, with recorded answers
    page/         the page itself: HTML, CSS, and JavaScript modules (draw, state, panels, page)

The page has no arithmetic but that of drawing, and the products of two rows under the pointer, whose sum the
library has computed. Every other number on it is computed by the library.
"""
