"""Small PDFs made on the spot."""

from __future__ import annotations

from PIL import Image

from demo.documents import pdf_of


def plain_pdf(*colours: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> bytes:
    """A page for each colour."""
    return pdf_of([Image.new("RGB", size, colour) for colour in colours])


def written_pdf(*objects: bytes, trailer: bytes = b"") -> bytes:
    """A PDF of these objects, of which the first is its catalogue."""
    body, places = b"%PDF-1.7\n", []
    for number, text in enumerate(objects, start=1):
        places.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, text)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return (
        b"%bxref\n0 %d\n0000000000 65535 f \n%btrailer\n<</Size %d/Root 1 0 R%b>>\nstartxref\n%d\n%%%%EOF"
        % (
            body,
            size,
            table,
            size,
            trailer,
            len(body),
        )
    )


def pages_pdf(count: int, box: bytes = b"0 0 4 3", said: int | None = None) -> bytes:
    """`count` empty pages of one size; `said` is how many it says it has."""
    kids = b" ".join(b"%d 0 R" % number for number in range(3, count + 3))
    pages = b"<</Type/Pages/Count %d/Kids[%b]>>" % (count if said is None else said, kids)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[%b]>>" % box
    return written_pdf(b"<</Type/Catalog/Pages 2 0 R>>", pages, *[page] * count)


def locked_pdf() -> bytes:
    """Encrypted with a password that nobody knows."""
    secret = b"<%b>" % (b"5a" * 32)
    lock = b"/Encrypt<</Filter/Standard/V 1/R 2/Length 40/P -4/O%b/U%b>>/ID[<aa><aa>]" % (secret, secret)
    catalogue, pages = b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[3 0 R]>>"
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 4 3]>>"
    return written_pdf(catalogue, pages, page, trailer=lock)


def form_pdf() -> bytes:
    """A page of 20 x 20 points with one text field that is filled in, drawn as a black square by its own looks."""
    stream = b"0 0 0 rg 0 0 10 10 re f"
    return written_pdf(
        b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[4 0 R]>>>>",
        b"<</Type/Pages/Count 1/Kids[3 0 R]>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 20 20]/Annots[4 0 R]>>",
        b"<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/V(x)/F 4/Rect[5 5 15 15]/AP<</N 5 0 R>>>>",
        b"<</Type/XObject/Subtype/Form/BBox[0 0 10 10]/Length %d>>stream\n%b\nendstream"
        % (len(stream), stream),
    )
