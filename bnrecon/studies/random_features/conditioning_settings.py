"""Sizes of Figure 2, its solvers, and what limits them."""

from __future__ import annotations

from bnrecon.solvers import SolverSpec

__all__ = ["CHANNELS", "EXCESS", "IDENTIFIED", "SEEDS", "SETTINGS", "TITLES"]

CHANNELS = {"smoke": (5,), "laptop": (10, 20, 30, 40, 50), "paper": (10, 20, 30, 40, 50)}
SEEDS = {"smoke": 2, "laptop": 5, "paper": 10}
EXCESS = (0, 10, 100)  # c1 - n
IDENTIFIED = 1e7  # larger condition numbers cannot be identified in float32

# Columns of the rows. The paper states no limit of iterations: 2,000 is bnrecon's choice, and with
# 50,000 LBFGS ends by itself, where its line search finds nothing better in float32.
SETTINGS = {
    "lbfgs": SolverSpec("lbfgs", max_iterations=2_000),
    "lbfgs_long": SolverSpec("lbfgs", max_iterations=50_000),
    "svd_lbfgs": SolverSpec("svd_lbfgs", max_iterations=2_000),
    "svd_lu_lbfgs": SolverSpec("svd_lu_lbfgs", max_iterations=2_000),
    "auto": SolverSpec("auto"),
}
TITLES = {
    "lbfgs": "LBFGS, at most 2,000",
    "lbfgs_long": "LBFGS, at most 50,000",
    "svd_lbfgs": "SVD, LBFGS",
    "svd_lu_lbfgs": "SVD, solve, LBFGS",
    "auto": "bnrecon",
}
