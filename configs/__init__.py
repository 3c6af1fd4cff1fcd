"""The yaml files behind `bnrecon run`; installed as `bnrecon.configs`."""
