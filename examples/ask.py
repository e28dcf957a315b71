"""Ask about an image with nothing but the standard library, and see what was reused.

CONDUIT_DEMO=true CONDUIT_ALLOWED_PRIVATE_HOSTS=127.0.0.1 make serve
python examples/ask.py
"""

import json
import os
import sys
import urllib.request

BASE = os.environ.get("CONDUIT_URL", "http://127.0.0.1:8000")
PAGE = f"{BASE}/demo/pages/red_71_A05k4_C11m2_F20n7.png"


def ask(question: str, *images: str) -> dict:
    body = json.dumps({"prompt": question, "images": images, "max_tokens": 32}).encode()
    request = urllib.request.Request(f"{BASE}/v1/chat", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def main(images: list[str]) -> None:
    for question in ("What is A on the red page?", "Please read C from the red page."):
        answer = ask(question, *images)
        report = answer["kv_report"]
        print(f"{question}  ->  {answer['choices'][0]['message']['content']}")
        for image in report["images"]:
            print(f"   image {image['key']}: {image['outcome']} {image['tier'] or ''}")
        reused = report["reused_tokens"] + report["chained_tokens"]
        print(f"   {reused} of {report['visual_tokens']} visual tokens reused")


if __name__ == "__main__":
    main(sys.argv[1:] or [PAGE])
