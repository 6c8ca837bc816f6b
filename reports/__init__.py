"""Reports: views of an AuditResult; nothing is computed here beyond formatting."""
