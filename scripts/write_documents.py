#!/usr/bin/env python3
"""Write docs/reproduction/NAME.md, a page for each paper, from the results in outputs/.

    python scripts/write_documents.py [--check]

With --check nothing is written: the exit code is 1 where a page differs from the results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import command_line

from bnrecon.reproduction.document import document
from bnrecon.runtime import files
from bnrecon.studies import registry

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them."""
    check = command_line.parser(__doc__, check=False).parse_args(arguments).check
    outdated = []
    for name in registry.STUDIES:
        path = ROOT / "docs" / "reproduction" / f"{name}.md"
        text = document(registry.find(name), ROOT / "outputs")
        if files.has_text(path, text):
            continue
        outdated.append(path.relative_to(ROOT))
        if not check:
            files.write_text(path, text)
    for path in outdated:
        print(f"{path} {'differs from the results' if check else 'written'}")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
