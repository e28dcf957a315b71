"""4 bits a value: a bit more than a quarter of the size. Changes a few of the rows that are chosen for
refresh."""

from store.codec import register
from store.integer import IntegerCodec

register(IntegerCodec(4))
