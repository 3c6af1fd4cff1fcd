"""The note below a figure covers nothing of it."""

import itertools

import pytest

from bnrecon.reporting.figures import NOTE, add_note, new_figure, style


@pytest.mark.parametrize(
    "place", [None, "outside lower center", "outside upper center", "lower right"]
)
def test_a_note_lies_below_everything_else(place):
    with style():
        figure, axes = new_figure(1, 2)
        for panel in axes:
            panel.plot([1, 2], label="line")
            panel.set_xlabel("x")
            panel.set_title("title")
        if place is not None:
            figure.legend(*axes[0].get_legend_handles_labels(), loc=place)
        width, height = figure.get_size_inches()
        add_note(figure, "bnrecon study burkholz2024 table1 scale=laptop")
        figure.draw_without_rendering()
    assert tuple(figure.get_size_inches()) == pytest.approx((width, height + NOTE))
    boxes = [note.get_window_extent() for note in figure.texts]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes += [panel.get_tightbbox() for panel in axes if place != "lower right"]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
