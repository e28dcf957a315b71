"""Draw which visual tokens a request refreshed, what scores chose them, and how far their keys had drifted.

make serve
.venv/bin/python examples/refresh_picture.py
"""

import io
import os

import httpx

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError:
    raise SystemExit("matplotlib is needed to draw: pip install matplotlib") from None

BASE = os.environ.get("CONDUIT_URL", "http://127.0.0.1:8000")
PAGES = [f"{BASE}/demo/pages/{page}.png" for page in ("red_71_A05k4_C11m2_F20n7", "blue_4_B07m3_E13k1_H30n5")]
ASKED = {"prompt": "What is B on the blue page?", "images": PAGES, "max_tokens": 8}
HEADERS = {"authorization": f"Bearer {os.environ.get('CONDUIT_API_KEY', 'none')}"}

with httpx.Client(base_url=BASE, headers=HEADERS, timeout=60) as api:
    told = []  # at the default ratio for states and scores, at 1 for the drift of every token
    for cache in ({"chain": "off", "explain": True}, {"chain": "off", "explain": True, "refresh_ratio": 1}):
        answer = api.post("/v1/chat", json={**ASKED, "cache": cache}).raise_for_status().json()
        told.append([image["explained"] for image in answer["kv_report"]["images"]])
    pictures = [plt.imread(io.BytesIO(api.get(page).content)) for page in PAGES]

figure, axes = plt.subplots(len(PAGES), 3, figsize=(9, 6))
for row, picture, now, whole in zip(axes, pictures, *told, strict=True):
    rows, columns = now["grid"]
    layers = {"state": now["states"], "score": now["scores"], "drift": whole["drift"]}
    for axis, (name, values) in zip(row, layers.items(), strict=True):
        values = values or [0.0] * (rows * columns)  # an exact image has no scores
        grid = [values[i : i + columns] for i in range(0, rows * columns, columns)]
        axis.imshow(picture, extent=(0, columns, rows, 0))
        axis.imshow(grid, extent=(0, columns, rows, 0), alpha=0.6)
        axis.set_title(name)
figure.savefig("refresh.png")
print("refresh.png:", *(f"{one['states'].count(2)} refreshed" for one in told[0]))
