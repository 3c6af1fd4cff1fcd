"""A frame of numbers as a LaTeX table with caption and label, no wider than a page."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from bnrecon.reporting.tables import AS_WRITTEN, Formats, as_text

__all__ = ["latex", "words"]

NEEDS = r"% \usepackage[T1]{fontenc} \usepackage{array,booktabs,longtable,rotating}"
LONG = 40  # rows that fit on a page
# Characters on a line of some 390 pt, by size of type, and of a page turned by a right angle.
LINES = ((r"\footnotesize", 92, False), (r"\scriptsize", 105, False), (r"\scriptsize", 160, True))
GAP = 1.6  # characters between two columns, 6 pt
SPECIAL = "&%$#_{}"
WRITTEN = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "“": "``",
    "”": "''",
}
SYMBOLS = r"""
α \alpha  β \beta  γ \gamma  Γ \Gamma  δ \delta  Δ \Delta  ε \varepsilon  κ \kappa  λ \lambda
μ \mu  µ \mu  π \pi  ρ \rho  σ \sigma  Σ \Sigma  χ \chi  Π \prod  ² ^2  ³ ^3  ⁴ ^4  ᵀ ^T
½ 1/2  √ \surd  ± \pm  − -  ≤ \le  ≥ \ge  ≠ \ne  < <  > >  → \to  × \times  · \cdot  ∘ \circ
∇ \nabla  ∂ \partial  ∞ \infty  ‖ \|  ⟨ \langle  ⟩ \rangle  ′ '
"""
PAIRS = SYMBOLS.split()
LETTERS: Mapping[int, str] = str.maketrans(
    {letter: f"\\{letter}" for letter in SPECIAL}
    | WRITTEN
    | {letter: f"${command}$" for letter, command in zip(PAIRS[::2], PAIRS[1::2], strict=True)}
)


def words(text: str) -> str:
    r"""Plain text, or a page's Markdown, as LaTeX in one paragraph.

    >>> words("At 95%, `c1_n` is **Δk²**.")
    'At 95\\%, \\texttt{c1\\_n} is \\textbf{$\\Delta$k$^2$}.'
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))  # links
    text = re.sub(r'"([^"]*)"', "“\\1”", re.sub(r"(?<![\w.)])-(?=\d)", "−", text)).translate(
        LETTERS
    )
    text = re.sub(r"`([^`']+)`", r"\\texttt{\1}", text)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)


def latex(frame: pd.DataFrame, formats: Formats = AS_WRITTEN, *, caption: str, label: str) -> str:
    r"""A frame as a LaTeX table: ``table``, ``sidewaystable`` where wide, ``longtable`` where long.

    Columns that are too wide for a line share it, and their cells are broken between words.

    Args:
        frame: the table.
        formats: format specifications by column.
        caption: plain text, or a page's Markdown.
        label: what follows ``tab:``.

    >>> table = latex(pd.DataFrame({"Δk²": ["±1"]}), caption="Steps.", label="steps")
    >>> print(*table.splitlines()[6:10], sep="\n")
    \label{tab:steps}
    \begin{tabular}{l}
    \toprule
    $\Delta$k$^2$ \\
    """
    text = as_text(frame, formats)
    size, columns, turned = _layout(text)
    heading = _line(list(text.columns))
    rows = [_line(list(row)) for row in text.itertuples(index=False)]
    title = rf"\caption{{{words(caption)}}}", rf"\label{{tab:{label}}}"
    style = [size, r"\setlength{\tabcolsep}{3pt}"]
    top = [r"\toprule", heading, r"\midrule"]
    if len(rows) > LONG:
        begin = [r"\begingroup", *style, rf"\begin{{longtable}}{{{columns}}}"]
        heads = ["".join(title) + r" \\", *top, r"\endfirsthead", *top, r"\endhead"]
        end = [r"\end{longtable}", r"\endgroup"]
        lines = [*begin, *heads, r"\bottomrule", r"\endfoot", *rows, *end]
    else:
        kind = "sidewaystable" if turned else "table"
        begin = [rf"\begin{{{kind}}}", r"\centering", *style, *title]
        body = [rf"\begin{{tabular}}{{{columns}}}", *top, *rows, r"\bottomrule", r"\end{tabular}"]
        lines = [*begin, *body, rf"\end{{{kind}}}"]
    return "\n".join([NEEDS, *lines, ""])


def _line(cells: list[str]) -> str:
    return " & ".join(words(cell) for cell in cells) + r" \\"


def _layout(text: pd.DataFrame) -> tuple[str, str, bool]:
    """Size of type, column specification, and whether the page is turned."""
    cells = [[str(name), *text[name]] for name in text.columns]
    whole = [max(map(len, column)) for column in cells]
    least = [max((len(w) for cell in column for w in cell.split()), default=1) for column in cells]
    gaps = GAP * len(cells)
    size, line, turned = LINES[0]
    if sum(whole) + gaps <= line:
        return size, "l" * len(cells), turned
    turn = sum(least) + gaps > LINES[1][1] and len(text) <= LONG
    size, line, turned = LINES[2 if turn else 1]
    spare = max(line - gaps - sum(least), 0.0) / max(sum(whole) - sum(least), 1)
    widths = [low + spare * (high - low) for low, high in zip(least, whole, strict=True)]
    share = (1 - gaps / line) / sum(widths)
    spec = "".join(
        rf">{{\raggedright\arraybackslash}}p{{{width * share:.3f}\linewidth}}" for width in widths
    )
    return size, spec, turned
