"""A frame of numbers as a LaTeX table with caption and label that fits a page's width."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import wrap

import pandas as pd

from bnrecon.reporting.tables import AS_WRITTEN, Formats, as_text

NEEDS = r"% \usepackage[T1]{fontenc} \usepackage{array,booktabs,longtable,pdflscape,rotating}"
# Lines per page, and characters per line of about 390 pt, by type size; the last is for a page
# rotated by 90 degrees.
LINES = (
    (r"\footnotesize", 50, 92, False),
    (r"\scriptsize", 58, 105, False),
    (r"\scriptsize", 38, 160, True),
    (r"\tiny", 46, 200, True),
)
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
μ \mu  µ \mu  π \pi  ρ \rho  σ \sigma  Σ \Sigma  φ \varphi  χ \chi  Π \prod  ² ^2  ³ ^3  ⁴ ^4  ᵀ ^T
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
    r"""Convert plain text, or a page's Markdown, to one paragraph of LaTeX.

    >>> words("At 95%, `c1_n` is **Δk²**.")
    'At 95\\%, \\texttt{c1\\_n} is \\textbf{$\\Delta$k$^2$}.'
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))  # links
    text = re.sub(r"(?<![\w.)])-(?=\d)", "−", text)
    text = re.sub(r'"([^"]*)"', "“\\1”", text).translate(LETTERS)
    text = re.sub(r"`([^`']+)`", r"\\texttt{\1}", text)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)


def latex(frame: pd.DataFrame, formats: Formats = AS_WRITTEN, *, caption: str, label: str) -> str:
    r"""A frame as a LaTeX table: ``table``, ``sidewaystable`` if wide, ``longtable`` if long.

    A wide and long one is a ``longtable`` on rotated pages, ``landscape``. Columns that are too
    wide share the line, and their cells break between words. The caption is plain text, or a page's
    Markdown; ``label`` follows ``tab:``.

    >>> table = latex(pd.DataFrame({"Δk²": ["±1"]}), caption="Steps.", label="steps")
    >>> print(*table.splitlines()[7:11], sep="\n")
    \label{tab:steps}
    \begin{tabular}{l}
    \toprule
    $\Delta$k$^2$ \\
    """
    text = as_text(frame, formats)
    size, columns, turned, long = _layout(text, caption)
    heading = _line(list(text.columns))
    rows = [_line(list(row)) for row in text.itertuples(index=False)]
    title = rf"\caption{{{words(of_table(caption))}}}", rf"\label{{tab:{label}}}"
    # No line ends after the hyphen of 4.0e-11.
    style = [size, r"\setlength{\tabcolsep}{3pt}", r"\exhyphenpenalty=10000"]
    top = [r"\toprule", heading, r"\midrule"]
    if long:
        group = r"\begin{landscape}", r"\end{landscape}"
        outer = group if turned else (r"\begingroup", r"\endgroup")
        wide = r"\setlength{\LTcapwidth}{\linewidth}"  # captions have 4 inches by default
        begin = [outer[0], *style, wide, rf"\begin{{longtable}}{{{columns}}}"]
        heads = ["".join(title) + r" \\", *top, r"\endfirsthead", *top, r"\endhead"]
        end = [r"\end{longtable}", outer[1]]
        lines = [*begin, *heads, r"\bottomrule", r"\endfoot", *rows, *end]
    else:
        kind = "sidewaystable" if turned else "table"
        begin = [rf"\begin{{{kind}}}", r"\centering", *style, *title]
        body = [rf"\begin{{tabular}}{{{columns}}}", *top, *rows, r"\bottomrule", r"\end{tabular}"]
        lines = [*begin, *body, rf"\end{{{kind}}}"]
    return "\n".join([NEEDS, *lines, ""])


def of_table(caption: str) -> str:
    """A caption without its sentences about the picture.

    >>> of_table("Losses. Bars: 95% intervals; grey: in print. Table: c1 = n.")
    'Losses. Table: c1 = n.'
    """
    return re.sub(
        r"(?<=[.)]) (Figure|Bars|Dotted|Dashed|Grey|Bands)[^.]*: .*?\.(?= |$)", "", caption
    )


def _line(cells: list[str]) -> str:
    line = " & ".join(words(cell) for cell in cells)
    # After the line above, "[" would begin a length and "*" forbid a page break.
    return ("{}" if line.startswith(("[", "*")) else "") + line + r" \\"


def _extent(text: str) -> float:
    """The width of a text in characters; capitals and signs are wider."""
    return len(text) + 0.4 * sum(c.isupper() or not c.isascii() or c in "%=+<>" for c in text)


def _layout(text: pd.DataFrame, caption: str) -> tuple[str, str, bool, bool]:
    """Type size, column specification, whether the page is rotated, whether it is too short."""
    cells = [[str(name), *text[name]] for name in text.columns]
    whole = [max(map(_extent, column)) for column in cells]
    least = [
        max((_extent(word) for cell in column for word in cell.split()), default=1.0)
        for column in cells
    ]
    gaps = GAP * len(cells)
    size, page, line, turned = LINES[0]
    if sum(whole) + gaps <= line:
        return size, "l" * len(cells), turned, len(text) + len(caption) / line > page
    fitting = (lines for lines in LINES[1:] if sum(least) + gaps <= lines[2])
    size, page, line, turned = next(fitting, LINES[-1])
    spare = max(line - gaps - sum(least), 0.0) / max(sum(whole) - sum(least), 1)
    widths = [low + spare * (high - low) for low, high in zip(least, whole, strict=True)]
    share = (1 - gaps / line) / sum(widths)
    spec = "".join(
        rf">{{\raggedright\arraybackslash}}p{{{width * share:.3f}\linewidth}}" for width in widths
    )
    broken = [
        max(
            len(wrap(cell, max(int(width * share * line), 1)))
            for cell, width in zip(row, widths, strict=True)
        )
        for row in zip(*cells, strict=True)
    ]
    return size, spec, turned, sum(broken) + len(caption) / line > page
