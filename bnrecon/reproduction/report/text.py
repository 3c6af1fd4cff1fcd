"""The few marks of captions and claims as HTML: code between backticks, and links to errata."""

from __future__ import annotations

import re
from collections.abc import Mapping

from markupsafe import Markup, escape

__all__ = ["inline", "plain"]

CODE = re.compile(r"`([^`]+)`")
ERRATUM = re.compile(r"\b(errat(?:um|a) )(\d+)\b")


def inline(text: str, errata: Mapping[str, str]) -> Markup:
    """A text as HTML: everything is escaped first, so that no part of it is taken for HTML.

    Args:
        text: what a study says of its numbers; names in it may be a user's.
        errata: the anchors of the errata on the page, by number.

    >>> print(inline("`a<b>` in erratum 17 & <i>", {"17": "e17"}))
    <code>a&lt;b&gt;</code> in <a href="#e17">erratum 17</a> &amp; &lt;i&gt;
    """
    # Every other piece stood between backticks.
    pieces = CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else _linked(piece, errata)
        for place, piece in enumerate(pieces)
    )


def _linked(text: str, errata: Mapping[str, str]) -> Markup:
    def link(found: re.Match[str]) -> str:
        anchor = errata.get(found[2])
        return f'<a href="#{escape(anchor)}">{found[0]}</a>' if anchor else found[0]

    return Markup(ERRATUM.sub(link, str(escape(text))))


def plain(text: str) -> str:
    """A text without its marks, for what is read aloud."""
    return CODE.sub(r"\1", text)
