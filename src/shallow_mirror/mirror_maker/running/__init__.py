"""A MirrorMaker 2 that runs, or ran: what it has copied, where groups stand in its topics, and whether it still writes."""
