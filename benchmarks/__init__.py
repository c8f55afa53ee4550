"""Commands that measure; see docs/developing.md."""
