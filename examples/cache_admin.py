"""An operator's look at the store: what it holds, what could go, and one entry removed.

make serve
.venv/bin/python examples/cache_admin.py
"""

import os

import httpx

BASE = os.environ.get("CONDUIT_URL", "http://127.0.0.1:8000")
PAGE = f"{BASE}/demo/pages/cyan_9_A02k6_D21n0.png"
KEY = os.environ.get("CONDUIT_ADMIN_KEY")
headers = {"authorization": f"Bearer {KEY}"} if KEY else {}

with httpx.Client(base_url=BASE, headers=headers, timeout=60) as api:
    warmed = api.post("/v1/cache/warm", json={"images": [PAGE], "tenant": "default"}).raise_for_status()
    print(next(line for line in warmed.text.splitlines() if line.startswith("data: ")))

    stats = api.get("/v1/cache/stats").raise_for_status().json()
    for tier in stats["tiers"]:
        print(
            f"{tier['name']}: {tier['entries']} entries, {tier['bytes_logical']} bytes, {tier['hits']} hits"
        )

    entries = api.get("/v1/cache/entries", params={"limit": 10}).raise_for_status().json()["entries"]
    for entry in entries:
        print(f"{entry['key'][:16]} {entry['width']} x {entry['height']} in {', '.join(entry['tiers'])}")

    idle = api.post("/v1/cache/evict", json={"older_than": 3600, "dry_run": True}).raise_for_status().json()
    print(f"{len(idle['keys'])} entries unused for an hour")

    newest = max(entries, key=lambda entry: entry["created"])
    api.delete(f"/v1/cache/entries/{newest['key']}").raise_for_status()
    print(f"removed {newest['key'][:16]}")
