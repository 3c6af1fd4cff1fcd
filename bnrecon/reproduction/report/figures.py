"""Figures as SVG inside a page: small, named for screen readers, in the page's colours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from markupsafe import Markup

from bnrecon.reporting import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["VectorFigures"]

HREF = "{http://www.w3.org/1999/xlink}href"
REFERENCE = re.compile(r"url\(#([^)]+)\)")
NUMBER = re.compile(r"-?\d+\.\d+")
GEOMETRY = ("d", "x", "y", "width", "height", "points", "cx", "cy", "r")
GLYPH = re.compile(r"(DejaVu|Cmr|Cmmi|Cmsy|Cmex|STIX)[\w-]*-[0-9a-f]+")
# What matplotlib writes as a style sheet, which inside a page would hold for all of the page.
ROOT = {"stroke-linejoin": "round", "stroke-linecap": "butt", "fill": "currentColor"}
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
        self._glyphs: dict[str, ET.Element] = {}

    def svg(self, figure: Figure, name: str, title: str, description: str) -> Markup:
        """A figure as an ``svg`` element: the same text for the same drawing.

        Args:
            figure: what is drawn.
            name: is put before its ids, since all figures of a page share one space of ids.
            title: its accessible name.
            description: what a screen reader says of it beside that.
        """
        root = ET.fromstring(figures.image(figure, "svg"))
        used = _references(root)
        self._take_out(root)
        for element in root.iter():
            _clean(element, name, used)
        for element in root.iter("g"):
            _raise_style(element)
        width, height = (root.attrib.pop(side).removesuffix("pt") for side in ("width", "height"))
        root.attrib.pop("version", None)
        labels = f"{name}-title {name}-desc"
        root.attrib.update(ROOT | {"role": "img", "aria-labelledby": labels})
        if _needs_white(root):
            root.set("class", "white")
        size = f"--natural:{float(width) * ON_SCREEN:.0f}px;aspect-ratio:{width}/{height}"
        root.set("style", size)
        for place, (tag, text) in enumerate((("title", title), ("desc", description))):
            child = ET.Element(tag, {"id": f"{name}-{tag}"})
            child.text = text
            root.insert(place, child)
        return Markup(ET.tostring(root, encoding="unicode"))

    def glyphs(self) -> Markup:
        """The letters of all figures, to stand once on the page."""
        sheet = ET.Element("svg", {"class": "glyphs", "aria-hidden": "true", "focusable": "false"})
        definitions = ET.SubElement(sheet, "defs")
        definitions.extend(self._glyphs[name] for name in sorted(self._glyphs))
        return Markup(ET.tostring(sheet, encoding="unicode"))

    def _take_out(self, root: ET.Element) -> None:
        """Take out metadata, style sheets and letters, and what held nothing else."""
        for parent in list(root.iter()):
            for child in list(parent):
                if _tag(child) == "defs":
                    self._keep_letters(child)
                if _tag(child) == "metadata" or (_tag(child) == "defs" and not len(child)):
                    parent.remove(child)

    def _keep_letters(self, definitions: ET.Element) -> None:
        for shape in list(definitions):
            name = shape.get("id", "")
            if GLYPH.fullmatch(name):
                self._glyphs.setdefault(name, _letter(shape))
            if GLYPH.fullmatch(name) or _tag(shape) == "style":
                definitions.remove(shape)


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _letter(shape: ET.Element) -> ET.Element:
    attributes = {"id": shape.get("id", ""), "d": " ".join(shape.get("d", "").split())}
    if transform := shape.get("transform"):
        attributes["transform"] = transform
    return ET.Element("path", attributes)


def _references(root: ET.Element) -> set[str]:
    """The ids that something refers to."""
    found = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            found.update(REFERENCE.findall(value))
            if key == HREF:
                found.add(value.removeprefix("#"))
    return found


def _clean(element: ET.Element, name: str, used: set[str]) -> None:
    """Short names and numbers, no ids that nothing refers to, no blanks between elements."""
    element.tag = _tag(element)
    element.text = (element.text or "").strip() or None
    element.tail = None
    own = element.attrib.pop("id", None)
    if own in used:
        element.set("id", f"{name}-{own}")
    for key, value in list(element.attrib.items()):
        if key == HREF:
            del element.attrib[key]
            element.set("href", _target(value, name))
        else:
            element.set(key, _shorten(key, REFERENCE.sub(rf"url(#{name}-\1)", value)))


def _target(reference: str, name: str) -> str:
    """What a reference points to on the page: letters are shared, images lie in the reference."""
    if not reference.startswith("#") or GLYPH.fullmatch(reference[1:]):
        return reference
    return f"#{name}-{reference[1:]}"


def _shorten(key: str, value: str) -> str:
    if key in GEOMETRY:
        return " ".join(NUMBER.sub(_short, value).split())
    if key == "transform":  # a scale is small, and multiplies what is large
        return NUMBER.sub(lambda number: f"{float(number[0]):.6g}", value)
    if key == "style":
        value = COLOUR.sub(lambda found: PAGE_COLOURS[found[0]], value)
        return value.replace("; ", ";").replace(": ", ":")
    return value


def _needs_white(root: ET.Element) -> bool:
    """Whether the drawing can be read on white paper only: it has a map of colours or dark ones."""
    if any(element.tag == "image" for element in root.iter()):
        return True
    styles = " ".join(element.get("style", "") for element in root.iter())
    return any(
        len(set(found)) > 1 and _luminance(found) < DARK for found in set(HEX.findall(styles))
    )


def _luminance(colour: tuple[str, str, str]) -> float:
    """Relative luminance, from 0 to 1, by sRGB's gamma in its simple form."""
    red, green, blue = ((int(part, 16) / 255) ** 2.2 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _short(number: re.Match[str]) -> str:
    """A coordinate to a hundredth of a point."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _raise_style(group: ET.Element) -> None:
    """Give a group the style that all its children share; shapes inherit it from there."""
    styles = {child.get("style", "") for child in group}
    if "style" in group.attrib or len(styles) != 1:
        return
    (style,) = styles
    if style and "opacity:" not in style and "clip-path" not in style:
        group.set("style", style)
        for child in group:
            del child.attrib["style"]
