"""The tier on disk: one LMDB environment, opened only after a child process has rehearsed it."""
