"""8 bits a value: a bit more than half the size, less error than rounding to bf16 adds where keys have large
offsets."""

from store.codec import register
from store.integer import IntegerCodec

register(IntegerCodec(8))
