"""What everything stands on and nothing of networks: errors, files, locks, digests, hardware, precision, processes."""
