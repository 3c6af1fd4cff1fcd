"""The engine of studies, which knows no paper: tables of runs, experiments, what is missing and who computes it."""
