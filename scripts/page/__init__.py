"""What scripts/make_page.py makes: the article's figures, its pictures, and one file of all."""
