"""Results of runs as objects, and their tables, figures and intervals."""
