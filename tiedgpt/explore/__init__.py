"""`tiedgpt explore`: a page that shows what the switch does, on the reader's own prompt.

page/ has HTML, CSS, and a JavaScript module for each panel. The library computes each number on the
page, but for the products of two rows under the pointer.
"""
