"""Everything a user can set, typed and checked; it and the command line alone know Hydra."""
