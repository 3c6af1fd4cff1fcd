"""Figures inside a page: whole, small, named, and with ids that no other figure has."""

import re
import xml.etree.ElementTree as ET

from bnrecon.reporting import figures as drawing
from bnrecon.reproduction.report.figures import VectorFigures


def drawn(kind="lines"):
    with drawing.style():
        figure, axes = drawing.new_figure()
        if kind == "image":
            axes.imshow([[0, 1], [1, 0]])
        elif kind == "dark":
            axes.plot([1, 2], [3, 1e-9], color="#440154")
        else:
            axes.plot([1, 2], [3, 1e-9], "o-", label="error")
            axes.errorbar([1, 2], [1, 2], [0.1, 0.2])
            axes.set_yscale("log")
            axes.legend()
        axes.set_xlabel("width <c1> & more $c_0$")
    return figure


def parsed(svg):
    return ET.fromstring(str(svg))


def test_a_figure_says_what_it_is_and_shows_no_markup_of_its_own():
    svg = VectorFigures().svg(drawn(), "a-b", "Errors <b>", "By width & more")
    root = parsed(svg)
    assert root.get("role") == "img"
    title, description = root.get("aria-labelledby").split()
    texts = {element.get("id"): element.text for element in root.iter()}
    assert texts[title] == "Errors <b>"
    assert texts[description] == "By width & more"
    assert "<b>" not in svg
    for word in ("<style", "<metadata", "dc:date", "<?xml", "DOCTYPE"):
        assert word not in svg


def test_two_figures_share_letters_and_no_other_id():
    figures = VectorFigures()
    svgs = [figures.svg(drawn(), name, "T", "D") for name in ("one", "two")]
    sheet = parsed(figures.glyphs())
    letters = {element.get("id") for element in sheet.iter() if element.get("id")}
    assert {name.rpartition("-")[0] for name in letters} == {"DejaVuSans", "DejaVuSans-Oblique"}
    ids = [{e.get("id") for e in parsed(svg).iter() if e.get("id")} for svg in svgs]
    assert not ids[0] & ids[1]
    assert not (ids[0] | ids[1]) & letters
    for svg, own in zip(svgs, ids, strict=True):
        used = {e.get("href")[1:] for e in parsed(svg).iter() if e.get("href")}
        used |= set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used <= own | letters
        assert used & letters
