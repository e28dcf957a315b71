"""Every test runs on one torch thread: two threads on a busy small machine are several times slower than one. And
without the settings of whoever runs it."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

for name in [name for name in os.environ if name.upper().startswith("CONDUIT_")]:
    del os.environ[name]
