"""The `bnrecon` command: what was asked, exit codes, sweeps."""
