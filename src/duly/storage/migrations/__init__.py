"""Alembic migrations. Each is additive, so that version N works beside N−1 during a rolling deploy."""
