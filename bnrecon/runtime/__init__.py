"""What every package builds on: errors, files, locks, digests, hardware, precision, processes."""
