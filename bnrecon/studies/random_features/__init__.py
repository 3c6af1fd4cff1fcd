""" "Random features for normalization layers"."""
