"""Everything a user can set, typed and checked; with the command line the rooms that know Hydra."""
