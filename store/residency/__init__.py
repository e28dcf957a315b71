"""What stays and what goes: index, recency, holds, pins and quotas, the cache of decoded entries.
Decides; moves no bytes of records."""
