"""The text of a part: mistakes are named, and no brace reaches a page."""

import pytest

from bnrecon.reporting.wording import BoundFormatter
from bnrecon.reproduction.parts import part, read_text

FRONT = "---\nwhere: Theorem 1\ntitle: A table\n---\n"


def write(folder, text):
    (folder / "made.md").write_text(text, encoding="utf-8")
    return str(folder / "made.py")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A caption.", "must begin with front matter"),
        ("---\nwhere: a: b\n---\nA caption.", r"made\.md: its front matter is not"),
        ("---\nwhere: here\n---\nA caption.", "its front matter is not .*title"),
        (f"{FRONT}A caption.\n## One\nx\n## One\ny\n", "two claims have one name"),
    ],
)
def test_mistake_in_a_text_is_named(tmp_path, text, why):
    with pytest.raises(ValueError, match=why):
        part(write(tmp_path, text), list, list)


def test_missing_number_is_named(tmp_path):
    text = read_text(write(tmp_path, f"{FRONT}\n## One\nHolds.\n> up to {{worst:.0e}}.\n"))
    assert text.claims(({"One": True}, {"worst": 0.5}))[0].evidence == "up to 5e-01."
    with pytest.raises(ValueError, match="names 'worst', and no such number"):
        text.claims(({"One": True}, {}))
    with pytest.raises(ValueError, match="no claim named"):
        text.claims(({"Two": True}, {}))


def test_caption_has_the_numbers_of_the_claims(tmp_path):
    module = write(tmp_path, f"{FRONT}At most {{worst}}.\n\n## One\nHolds.\n> {{worst}}.\n")
    decided = part(module, list, list, decide=lambda rows: ({"One": True}, {"worst": max(rows)}))
    assert decided.caption_for([1, 3]) == "At most 3."
    with pytest.raises(ValueError, match="names 'worst', and no such number"):
        part(module, list, list).caption_for([1, 3])


@pytest.mark.parametrize("kind", ["e", "f", "g", "%"])
@pytest.mark.parametrize("number", [0.012341, 0.98765, 5.4321, 123.456])
def test_rounded_bounds_enclose_the_number(kind, number):
    texts = (BoundFormatter().format(f"{{!{side}:.2{kind}}}", number) for side in "du")
    low, high = (float(text.rstrip("%")) / (100 if kind == "%" else 1) for text in texts)
    assert low <= number <= high
