"""Sphinx settings: pages are MyST Markdown and one notebook, with relative links."""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "bnrecon"
author = "the bnrecon authors"
project_copyright = "2026, the bnrecon authors"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"  # docstrings say what is taken
nb_execution_mode = "off"  # the tests run the notebook; its outputs are stored
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bnrecon"
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # of other libraries; links between pages stay strict
myst_heading_anchors = 3


def link_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Offer Markdown files outside docs/, which are no pages of the site, as downloads."""
    folder = Path(app.srcdir, page).parent

    def link(found: re.Match[str]) -> str:
        inside = (folder / found[1]).resolve().is_relative_to(Path(app.srcdir).resolve())
        return found[0] if inside else f"](path:{found[1]})"

    source[0] = re.sub(r"\]\(((?:\.\./)+[^)#]+\.md)\)", link, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_files_outside)
