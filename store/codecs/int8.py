"""8 bits a value: a bit more than half the size, less error than rounding to bf16 adds where keys have large
offsets."""

from store.codecs.integer import IntegerCodec
from store.codecs.protocol import register

register(IntegerCodec(8))
