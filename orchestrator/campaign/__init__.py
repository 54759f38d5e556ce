"""A campaign seen by its user: desired, planned, running and logged."""
