"""What every level of the compiler shares: dtypes, scalar expressions, dims, tensor types."""
