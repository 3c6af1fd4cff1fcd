"""Burkholz 2024, "Batch normalization is sufficient for universal function approximation in CNNs"."""
