"""CPUs: schedule rules, code generation to LLVM IR, object code and the default thread pool."""
