"""Sources of bearer tokens: token endpoints, files, callables, and the clouds' own libraries."""
