"""Paths of the repository, and the golden list of shipped results."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ROOT / "outputs"  # also holds the user's results: never list it
SCRIPTS = ROOT / "scripts"
# Fixed when results began to ship; entries are added, never changed.
SHIPPED = json.loads((ROOT / "tests/golden/shipped.json").read_text(encoding="utf-8"))
RESULTS = [OUTPUTS / "runs" / name / "result.json" for name in sorted(SHIPPED["runs"])]
