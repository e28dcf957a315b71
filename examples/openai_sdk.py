"""The stock OpenAI client, streaming; what is ours travels in `extra_body` and comes back as `kv_report`.

make install     # brings the client too
make serve
.venv/bin/python examples/openai_sdk.py
"""

import os

from openai import OpenAI

BASE = os.environ.get("CONDUIT_URL", "http://127.0.0.1:8000")
PAGE = f"{BASE}/demo/pages/blue_4_B07m3_E13k1_H30n5.png"

client = OpenAI(base_url=f"{BASE}/v1", api_key=os.environ.get("CONDUIT_API_KEY", "none"))
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[
        {"role": "system", "content": "You are a careful reader."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": PAGE}},
                {"type": "text", "text": "List what is on the blue page."},
            ],
        },
    ],
    max_tokens=32,
    stream=True,
    extra_body={"cache": {"policy": "conduit", "refresh_ratio": 0.2}},
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
    report = (chunk.model_extra or {}).get("kv_report")
    if report:
        computed = report["compiled_tokens"] + report["refreshed_tokens"]
        print(f"\n{report['policy']}: {computed} of {report['visual_tokens']} visual tokens computed")
