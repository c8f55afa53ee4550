"""What every floor above uses and nothing that knows tensors: errors, settings, hashing, cache, progress."""
