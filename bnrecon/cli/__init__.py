"""The `bnrecon` command: parser, commands, exit codes, logging, tab completion, sweeps."""
