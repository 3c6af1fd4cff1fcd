"""The paper "Random features for normalization layers" (anonymous, under review)."""
