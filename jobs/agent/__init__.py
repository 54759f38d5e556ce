"""One node of an attempt: claim, launch, watch, push, evidence."""
