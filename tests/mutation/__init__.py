"""Does the suite find faults, does the fuzzer? Planted faults, and what finds each: `python -m tests.mutation.run`."""
