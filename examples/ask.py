"""Ask about an image with nothing but the standard library, and see where what was computed for it comes from.

make serve
python3 examples/ask.py
"""

import json
import os
import sys
import urllib.error
import urllib.request

BASE = os.environ.get("CONDUIT_URL", "http://127.0.0.1:8000")
PAGE = f"{BASE}/demo/pages/red_71_A05k4_C11m2_F20n7.png"
HEADERS = {"content-type": "application/json"}
if key := os.environ.get("CONDUIT_API_KEY"):
    HEADERS["authorization"] = f"Bearer {key}"


def ask(question: str, *images: str) -> dict:
    body = json.dumps({"prompt": question, "images": images, "max_tokens": 32}).encode()
    request = urllib.request.Request(f"{BASE}/v1/chat", body, HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(json.load(error)["error"]["message"])
    except urllib.error.URLError as error:
        sys.exit(f"no service at {BASE}: {error.reason}")


images = sys.argv[1:] or [PAGE]
for question in ("What is A on the red page?", "Please read C from the red page."):
    answer = ask(question, *images)
    report = answer["kv_report"]
    kinds = ("compiled", "reused", "refreshed", "chained")
    print(f"{question}  ->  {answer['choices'][0]['message']['content']}")
    print("   visual tokens:", *(f"{report[f'{kind}_tokens']} {kind}" for kind in kinds))
