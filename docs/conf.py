"""Sphinx settings: pages are MyST Markdown with relative links, as a code host renders them."""

import re

from sphinx.application import Sphinx

project = "bnrecon"
author = "the bnrecon authors"
project_copyright = "2026, the bnrecon authors"

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bnrecon"
nitpicky = True
myst_heading_anchors = 3


def link_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Offer Markdown files beside docs/, which are no pages of the site, as files."""
    source[0] = re.sub(r"\]\((\.\./[^)#]+\.md)\)", r"](path:\1)", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_files_outside)
