"""Sphinx settings: pages are MyST Markdown and one notebook, with relative links.

The source folder is the checkout, so that these links lead to pages outside docs/ too.
"""

project = "bnrecon"
author = "the bnrecon authors"
project_copyright = "2026, the bnrecon authors"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"  # docstrings say what is taken
nb_execution_mode = "off"  # the tests run the notebook; its outputs are stored
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "outputs/**.md", "scripts/**.md"]
mine = ["outputs/runs", "outputs/studies", "outputs/sweeps"]
exclude_patterns = [".*", "build", "dist", "docs/_extra", *mine]
suppress_warnings = ["toc.not_included"]  # pages outside docs/ are linked, not listed
html_extra_path = ["_extra"]  # index.html leads to the root document
html_theme = "furo"
html_title = "bnrecon"
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # of other libraries; links between pages stay strict
myst_heading_anchors = 3
