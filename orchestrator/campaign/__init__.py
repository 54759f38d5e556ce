"""One campaign seen by its user: what is desired, planned, running, logged. May import reconcile and below."""
