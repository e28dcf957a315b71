"""Tool calls: how a checkpoint writes them, the grammar that keeps it to that, the reader that finds them."""
