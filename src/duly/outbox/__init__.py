"""Only after the commit: what leaves a transaction for somewhere else, by memory (post-commit) or by table (outbox)."""
