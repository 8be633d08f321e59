"""What is remembered beside the decisions: runs, problems, audits, groups, controls, quarantine, migrations."""
