"""The node side of `campaign doctor`. May import `jobs.agent`, whose means it uses, and below."""
