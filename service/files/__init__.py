"""Files that tenants uploaded: kept on disk as they came, found by their id, gone in their time."""
