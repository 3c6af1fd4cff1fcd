"""Where the files of the repository are, and what ships of its results."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ROOT / "outputs"  # holds the user's own results as well: never list it
SCRIPTS = ROOT / "scripts"
# Written down when results began to ship; entries are added, never changed.
SHIPPED = json.loads((ROOT / "tests/golden/shipped.json").read_text(encoding="utf-8"))
RESULTS = [OUTPUTS / "runs" / name / "result.json" for name in sorted(SHIPPED["runs"])]
