"""Target networks: their families, training, store and accuracy."""
