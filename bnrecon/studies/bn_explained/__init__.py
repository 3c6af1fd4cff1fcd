"""Batch normalization explained (anonymous, under review): geometry of normalized networks."""
