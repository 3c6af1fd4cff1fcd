"""One folder per paper: its tables and experiments, one file each, and the numbers it reports."""
