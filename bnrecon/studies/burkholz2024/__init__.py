"""Burkholz 2024: batch normalization is sufficient for universal approximation in CNNs."""
