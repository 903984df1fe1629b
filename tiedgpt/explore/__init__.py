"""`tiedgpt explore`: a page that shows what the switch does, on the reader's own prompt.

    server.py   HTTP for this machine only: checks every request, one computation at a time
    views.py    what each request computes: arguments in, one library call, plain numbers out
    source.py   the source code that stands beside each picture
    page/       the page itself, one file each of HTML, CSS and JavaScript; it only draws

The page has no arithmetic but that of drawing. Every number on it is computed by the library.
"""
