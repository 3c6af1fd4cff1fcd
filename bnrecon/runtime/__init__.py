"""The base of every package: errors, files, locks, digests, hardware, precision, processes."""
