"""`tiedgpt explore`: the article on the tie, and the laboratory, for the reader's own prompt.

tied.html is the article, one file that computes in the browser. `scripts/make_page.py` makes it of
the sources in article/: gpt2.js and tokenizer.js are GPT-2, with the names and the order of
scripts/tied.py. page/elements.js and page/style.css serve both pages.

The laboratory asks a server. panels.py declares its panels: the questions that each one asks, and
the functions whose source code it shows. A new panel is an entry there, a section of
page/page.html, and a module of page/ with the same name. shown.py has the models, query.py the
fields of a request. server.py answers requests. The library computes each number, but for the
products of two rows under the pointer.
"""
