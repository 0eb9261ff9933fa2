"""The audit trail: append-only, written in the transaction of the change, sealed into a hash chain behind the hot path."""
