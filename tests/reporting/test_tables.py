"""Frames as text: intervals, formats and column names."""

import functools
import io

import pandas as pd
import pytest
from repository import OUTPUTS

from bnrecon.reporting import tables
from bnrecon.reporting.latex import latex, words
from bnrecon.reporting.statistics import Interval
from bnrecon.studies import registry

FRAME = pd.DataFrame(
    {
        "loss, in %": [Interval(0.123456, 0.01, 3), Interval(1.0, None, 1), None],
        "max. error": [2.345e-11, None, 1.0],
        "layers": [54, 54, 5],
        "features": ["he_normal", None, "id_cond"],
    }
)


def test_csv_holds_an_interval_in_three_exact_columns():
    frame = pd.read_csv(io.StringIO(tables.csv(FRAME)))
    assert list(frame.columns) == [
        *("loss_in_mean", "loss_in_half_width", "loss_in_n"),
        *("max_error", "layers", "features"),
    ]
    assert frame["loss_in_mean"][0] == 0.123456
    assert frame["loss_in_n"][0] == 3
    assert pd.isna(frame["loss_in_half_width"][1])  # one value has no interval
    assert frame["max_error"][0] == 2.345e-11


LATEX = functools.partial(latex, caption="Losses.", label="losses")


@pytest.mark.parametrize("write", [tables.markdown, LATEX, tables.terminal])
def test_text_holds_intervals_in_the_requested_formats(write):
    text = write(FRAME, {"max. error": ".1e"})
    pm = "$\\pm$" if write is LATEX else "±"
    assert f"0.12 {pm} 0.01 (n=3)" in text
    assert "1.00 (n=1)" in text
    assert "2.3e-11" in text
    assert "nan" not in text.lower()
    assert "None" not in text


def test_formats_apply_to_intervals_but_not_to_text():
    assert "0.1235 ± 0.0100 (n=3)" in tables.markdown(FRAME, {"loss, in %": ".4f"})
    assert "| 1e5 " in tables.markdown(pd.DataFrame({"width": ["1e5"]}))


def test_bar_in_a_cell_starts_no_column_in_markdown():
    assert r"| a\|b " in tables.markdown(pd.DataFrame({"weights": ["a|b"]}))


def test_shipped_latex_has_no_letter_that_pdflatex_lacks():
    shipped = [path for name in registry.STUDIES for path in (OUTPUTS / name).glob("*.tex")]
    assert len(shipped) > 60
    assert [path.name for path in shipped if not path.read_text(encoding="utf-8").isascii()] == []


def test_latex_commands_are_escaped():
    assert words("50% of c_1 & {x} ~ #1") == r"50\% of c\_1 \& \{x\} \textasciitilde{} \#1"
    assert words("‖W′ − W‖ ≤ 1e-10 < -2") == r"$\|$W$'$ $-$ W$\|$ $\le$ 1e-10 $<$ $-$2"
    assert words('see [errata](../docs.md#4): "a"\n\nb') == "see errata: ``a'' b"


def test_latex_row_does_not_begin_with_an_argument_of_the_row_before():
    table = latex(pd.DataFrame({"seeds": ["[0,1]", "*"]}), caption="c", label="l")
    assert r"{}[0,1] \\" in table.splitlines()
    assert r"{}* \\" in table.splitlines()
