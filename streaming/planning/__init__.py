"""Planning of micro-batches: source offsets, ranges, slots, and the state that the planner keeps."""
