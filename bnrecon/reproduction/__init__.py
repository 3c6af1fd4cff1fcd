"""The engine of studies, independent of papers: tasks, runs, who computes them, their pages."""
