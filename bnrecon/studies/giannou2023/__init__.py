"""Giannou et al. 2023: the expressive power of tuning only the normalization layers."""
