"""Everything a user can say, typed and checked; beside the command line the only room that knows Hydra."""
