"""The command line: ask, administer, measure, over HTTP like any client."""
