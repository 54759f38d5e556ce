"""The loop that brings a campaign to its desired state: observe, decide (pure), act."""
