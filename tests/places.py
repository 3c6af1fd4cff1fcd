"""Where the files of the repository are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ROOT / "outputs"
SCRIPTS = ROOT / "scripts"
RESULTS = sorted((OUTPUTS / "runs").glob("*/result.json"))  # of the runs that ship
