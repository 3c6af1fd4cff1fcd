"""A folder a paper: its tables and experiments, and what it reports."""
