"""Whether machine, cluster and nodes are fit for a spec."""
