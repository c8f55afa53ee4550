"""What a machine is: ISA, vectors, caches, cores; target strings; detection of the machine at hand. No code generation."""
