"""The settings of Sphinx for the pages that scripts/make_site.py makes."""

project = "tiedgpt"
copyright = "the tiedgpt authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4  # the links to titles that GitHub knows
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page may begin with a title of the second level
html_theme = "alabaster"
html_theme_options = {
    "fixed_sidebar": True,
    "page_width": "1150px",  # a line of code has at most 100 characters
    "show_powered_by": False,
    "extra_nav_links": {"The article": "tied.html"},
}
html_show_sourcelink = False
html_copy_source = False
html_extra_path = ["static"]
# The theme has its own style and script, so no page asks another server for anything.
