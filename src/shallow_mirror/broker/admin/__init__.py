"""Administration of a cluster: topics, consumer groups, ACLs, hanging transactions."""
