"""One node of one attempt: claim, launch, watch, push, evidence. May import `jobs.forward` and `jobs.shared`."""
