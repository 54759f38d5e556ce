"""One node of an attempt: claim, launch, watch, push, evidence. May import `collect`, `forward` and `shared`."""
