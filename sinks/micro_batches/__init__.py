"""Driver: rounds of a micro-batch, whatever the sink."""
