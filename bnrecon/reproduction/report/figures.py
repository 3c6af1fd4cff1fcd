"""Figures as SVG inside a page: small, named for screen readers, in the page's colours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markupsafe import Markup

from bnrecon.reporting import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# matplotlib writes every letter as a path; its style sheet would hold for all of the page.
LEFT_OUT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
GLYPH = r"(?:DejaVu|Cmr|Cmmi|Cmsy|Cmex|STIX)[\w-]*-[0-9a-f]+"
LETTER = re.compile(rf'<path id="({GLYPH})"(?: d="([^"]*?) ?")?([^>]*)/>')  # a blank has no d
REFERENCE = re.compile(rf'((?:href="|url\()#)(?!{GLYPH}")([^)"]+)')
ATTRIBUTE = re.compile(r' (d|x|y|width|height|points|cx|cy|r|transform|style)="([^"]*?) ?"')
NUMBER = re.compile(r"-?\d+\.\d+")
ROOT = re.compile(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt" viewBox="([^"]*)"[^>]*>')
# What is ink, paper or grid takes the colours of the page; what is data keeps its own.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper,#fff)",
    "#e6e6e6": "var(--grid,#e6e6e6)",
    "#d3d3d3": "var(--line,#d3d3d3)",
    "#595959": "var(--soft,#595959)",
}
COLOUR = re.compile("|".join(PAGE_COLOURS))
HEX = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})\b")
DARK = 0.05  # a luminance that would not be seen on dark paper
ON_SCREEN = 1.7  # a point of the drawing in pixels: text of 8 points is to be read on a screen


class VectorFigures:
    """The figures of one page, which share the shapes of their letters."""

    def __init__(self) -> None:
        self._glyphs: dict[str, str] = {}

    def svg(self, figure: Figure, name: str, title: str, description: str) -> Markup:
        """A figure as an ``svg`` element: the same text for the same drawing.

        Args:
            figure: what is drawn.
            name: is put before its ids, since all figures of a page share one space of ids.
            title: its accessible name.
            description: what a screen reader says of it beside that.
        """
        text = LEFT_OUT.sub("", figures.image(figure, "svg").decode())
        text = " ".join(text[text.index("<svg") :].split()).replace("> <", "><")
        for letter in LETTER.finditer(text):
            glyph, shape, transform = letter.groups(default="")
            self._glyphs.setdefault(glyph, f'<path id="{glyph}" d="{shape}"{transform}/>')
        text = LETTER.sub("", text).replace("<defs></defs>", "").replace("xlink:href", "href")
        used = {reference[2] for reference in REFERENCE.finditer(text)}
        text = REFERENCE.sub(rf"\1{name}-\2", text)
        text = re.sub(
            r' id="([^"]+)"', lambda one: f' id="{name}-{one[1]}"' if one[1] in used else "", text
        )
        text = ATTRIBUTE.sub(_shorten, text)
        drawing = ROOT.match(text)
        assert drawing is not None, "matplotlib begins an SVG otherwise"
        width, height, view = drawing.groups()
        opening = Markup(
            '<svg viewBox="{view}" stroke-linejoin="round" stroke-linecap="butt" '
            'fill="currentColor" role="img" aria-labelledby="{name}-title {name}-desc"{white} '
            'style="--natural:{natural:.0f}px;aspect-ratio:{width}/{height}">'
            '<title id="{name}-title">{title}</title><desc id="{name}-desc">{description}</desc>'
        ).format(
            view=view,
            name=name,
            white=Markup(' class="white"') if _needs_white(text) else "",
            natural=float(width) * ON_SCREEN,
            width=width,
            height=height,
            title=title,
            description=description,
        )
        return opening + Markup(text[drawing.end() :])

    def glyphs(self) -> Markup:
        """The letters of all figures, to stand once on the page."""
        shapes = "".join(self._glyphs[name] for name in sorted(self._glyphs))
        return Markup(
            f'<svg class="glyphs" aria-hidden="true" focusable="false"><defs>{shapes}</defs></svg>'
        )


def _shorten(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point, the page's colours, no needless blanks."""
    key, value = attribute.groups()
    if key == "transform":  # a scale is small, and multiplies what is large
        value = NUMBER.sub(lambda number: f"{float(number[0]):.6g}", value)
    elif key == "style":
        value = COLOUR.sub(lambda colour: PAGE_COLOURS[colour[0]], value)
        value = value.replace("; ", ";").replace(": ", ":")
    else:
        value = NUMBER.sub(lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), value)
    return f' {key}="{value}"'


def _needs_white(svg: str) -> bool:
    """Whether the drawing can be read on white paper only: it has a map of colours or dark ones."""
    return "<image" in svg or any(
        len(set(colour)) > 1 and _luminance(colour) < DARK for colour in set(HEX.findall(svg))
    )


def _luminance(colour: tuple[str, str, str]) -> float:
    """Relative luminance, from 0 to 1, by sRGB's gamma in its simple form."""
    red, green, blue = ((int(part, 16) / 255) ** 2.2 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
