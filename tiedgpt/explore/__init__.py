"""`tiedgpt explore`: a page that shows what the switch does, on the reader's own prompt.

views/ answers what the page asks for; a new view begins there. page/ has the HTML, the CSS, and a
JavaScript module for each panel. server.py serves both; export.py makes one file of them, which
needs no server. The library computes each number on the page, but for the products of two rows
under the pointer.
"""
