"""Giannou, Rajput, Papailiopoulos 2023.

The expressive power of tuning only the normalization layers.
"""
