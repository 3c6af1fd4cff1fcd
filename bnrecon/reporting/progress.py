"""Lines that a run logs while it works."""

from __future__ import annotations

from bnrecon.reconstruction.report import LayerReport
from bnrecon.reporting.result import SeedRecord

__all__ = ["layer_line", "seed_line"]


def layer_line(seed: int, report: LayerReport) -> str:
    """One line for a layer that was solved."""
    state = "" if report.converged else f"  NOT CONVERGED {report.diagnosis}".rstrip()
    return (
        f"  seed {seed}  {report.name:<24} n={report.equations:<8} c1={report.width:<8} "
        f"{report.solver:<12} error {report.relative_error:.1e}  {report.seconds:.1f} s{state}"
    )


def seed_line(record: SeedRecord) -> str:
    """One line for a seed that is finished."""
    largest = max(layer.relative_error for layer in record.layers)
    return (
        f"seed {record.seed:<4} accuracy {record.accuracy:.2f}% (n={record.images}, "
        f"{record.source_images} through the real source network), "
        f"max. layer error {largest:.1e}, "
        f"max. logit difference {record.largest_difference_to_target:.1e}, {record.seconds:.0f} s"
    )
