"""Loop programs: nodes, builder, script form, interpreter, verifier, schedules and lowering."""
