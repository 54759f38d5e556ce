"""One node of one attempt: claim, launch, watch, push, evidence. May import `collect`, `forward` and `shared`."""
