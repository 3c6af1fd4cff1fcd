"""The errata of a checkout as HTML (an installed package has none), and links to them in texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from bnrecon.reproduction.document import anchor as anchor_of

PREFIX = "errata-"  # prefix of its headings' ids
NUMBERED = re.compile(r"(\d+)\. ")
CODE = re.compile(r"`([^`]+)`")
ERRATUM = re.compile(r"\b(errat(?:um|a) )(\d+)\b")
LINK = re.compile(r'<a href="(#|https://)?([^"]*)">(.*?)</a>', re.DOTALL)


@dataclass(frozen=True)
class Errata:
    """The document as HTML, and its entries' anchors by number."""

    html: Markup = field(default_factory=Markup)
    anchors: dict[str, str] = field(default_factory=dict)


def read_errata(text: str) -> Errata:
    r"""Render the Markdown, with headings one level below the page's.

    HTML in it becomes text, pictures are omitted, and links to other files of the checkout become
    text.

    >>> read_errata("# Errata\n\n### 1. A <b>").anchors
    {'1': 'errata-1-a-b'}
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(text)
    anchors: dict[str, str] = {}
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            anchor = PREFIX + anchor_of(following.content)
            token.attrSet("id", anchor)
            if number := NUMBERED.match(following.content):
                anchors.setdefault(number[1], anchor)
        if token.type.startswith("heading_"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
    tokens = tokens[3:] if tokens and tokens[0].tag == "h2" else tokens  # the page has a title
    html = LINK.sub(_page_link, parser.renderer.render(tokens, parser.options, {}))
    return Errata(Markup(html), anchors)


def _page_link(link: re.Match[str]) -> str:
    """Keep a link to an anchor of the page or to the web; replace one to another file by text."""
    start, target, text = link.groups()
    if start == "#":
        return f'<a href="#{PREFIX}{target}">{text}</a>'
    return link[0] if start else text


def inline(text: str, errata: Mapping[str, str]) -> Markup:
    """A text as HTML: everything is escaped first, so that none of it is taken for HTML.

    ``errata`` are the anchors of the errata on the page, by number.

    >>> print(inline("`a<b>` in erratum 17 & <i>", {"17": "e17"}))
    <code>a&lt;b&gt;</code> in <a href="#e17">erratum 17</a> &amp; &lt;i&gt;
    """

    def link(named: re.Match[str]) -> str:
        anchor = errata.get(named[2])
        return f'<a href="#{escape(anchor)}">{named[0]}</a>' if anchor else named[0]

    # Every other piece was in backticks.
    return Markup("").join(
        Markup("<code>{}</code>").format(piece)
        if number % 2
        else Markup(ERRATUM.sub(link, str(escape(piece))))
        for number, piece in enumerate(CODE.split(text))
    )


def plain(text: str) -> str:
    """A text without markup, for screen readers."""
    return CODE.sub(r"\1", text)
