"""4 bits a value: a bit more than a quarter of the size. Changes a few of the rows that are chosen for
refresh."""

from store.codecs.integer import IntegerCodec
from store.codecs.protocol import register

register(IntegerCodec(4))
