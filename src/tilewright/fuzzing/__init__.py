"""Looking for models that are compiled wrong: random graphs, and random schedules of kernels, against the interpreters."""
