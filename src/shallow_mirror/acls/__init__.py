"""ACLs of the source cluster for what a mirror copies: which of them its target needs, and the thread that follows them."""
