"""One HTML page about a mirror, made from its tables and one look at both clusters: `shallow-mirror report`."""
