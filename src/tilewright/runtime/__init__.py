"""What runs an artifact: linking, thread pool, executable, profiler. Imports `support` only."""
