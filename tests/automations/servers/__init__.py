"""AI APIs on loopback."""

from automations.servers.ai import AI, Asked, Gone, Reply, Says, Silent, Status

__all__ = ["AI", "Asked", "Gone", "Reply", "Says", "Silent", "Status"]
