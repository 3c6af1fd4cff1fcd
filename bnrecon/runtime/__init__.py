"""What every room builds on: errors, files, locks, digests, hardware, precision, processes."""
