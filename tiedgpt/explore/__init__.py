"""`tiedgpt explore`: a page that shows what the switch does, on the reader's own prompt.

    server.py     HTTP for this machine only: checks every request, one computation at a time
    views.py      what each request computes: fields in, one library call, plain numbers out
    symmetry.py   how symmetric the scores of each path are
    source.py     the source code that stands beside each picture
    export.py     the page in one file, with recorded answers
    page/         the page itself: HTML, CSS, and JavaScript modules: draw, state, one for each panel, page

Each number on the page is computed by the library, but for the products of two rows under the pointer.
"""
