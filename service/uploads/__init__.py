"""`/v1/files`: a multipart body becomes a file of its tenant, which is listed, handed back and deleted."""
