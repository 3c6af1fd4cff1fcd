"""The engine of studies, which knows no paper: tasks, runs, who computes them, their pages."""
