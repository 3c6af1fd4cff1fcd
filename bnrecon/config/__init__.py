"""All options of users, typed and checked; only this package and the command line use Hydra."""
