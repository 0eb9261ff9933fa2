"""AI providers: OpenAI-compatible HTTP, Anthropic Messages, and a scripted one."""
