"""`tiedgpt explore`: a page that shows what the switch does, on the reader's own prompt.

panels.py declares the panels: the questions that each one asks, and the functions whose source code
it shows. A new panel is an entry there, a section of page/page.html, and a module of page/ with the
same name. shown.py has the models, query.py the fields of a request. server.py answers requests.
The library computes each number on the page, but for the products of two rows under the pointer.
"""
