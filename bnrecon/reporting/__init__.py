"""Results of runs as objects, and what is made of them: tables, figures, intervals."""
