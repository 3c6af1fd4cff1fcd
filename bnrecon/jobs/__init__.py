"""Who computes work: this process, several on this machine, or the jobs of a cluster."""
