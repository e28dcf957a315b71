"""The report: a page and its sections.
Results come in, Markdown and curves leave."""
