"""PNG: a file is read rightly or refused, whatever stands beside its pixels."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from chiasm.errors import UserError
from chiasm.multimodal.decode import decode_image, image_to_rgb
from tests.multimodal.encoded import encode, png, png_chunk
from tests.multimodal.pictures import make_picture

WHITE = (255, 255, 255)
COLOUR = (200, 100, 50)
ROWS = (b"\0" + bytes(COLOUR * 8)) * 8


def colours(data):
    return [tuple(pixel) for pixel in decode_image(data, max_pixels=10_000).reshape(-1, 3).tolist()]


def is_refused(data):
    try:
        decode_image(data, max_pixels=10_000)
    except UserError:
        return True
    return False


class TestDamage:
    """No file that is not what its writer wrote becomes another picture."""

    @pytest.mark.parametrize("level", [0, 6])
    def test_of_the_pixels_whose_chunk_has_a_right_sum(self, level):
        packed = zlib.compress(ROWS, level)
        num_refused = 0
        for bit in range(8 * len(packed)):
            flipped = bytearray(packed)
            flipped[bit // 8] ^= 1 << bit % 8
            data = png(8, 8, 8, 2, b"", packed=bytes(flipped))
            if is_refused(data):
                num_refused += 1
            else:  # bits that zlib gives no meaning
                assert set(colours(data)) == {COLOUR}
        assert num_refused > 0.85 * 8 * len(packed)

    def test_whatever_the_number_of_chunks(self):
        packed = bytearray(zlib.compress(ROWS, 0))
        packed[40] ^= 1
        pieces = b"".join(png_chunk(b"IDAT", packed[i : i + 1]) for i in range(len(packed)))
        whole = png_chunk(b"IDAT", bytes(packed))
        assert is_refused(png(8, 8, 8, 2, b"", packed=bytes(packed)).replace(whole, pieces))
        packed[40] ^= 1
        pieces = b"".join(png_chunk(b"IDAT", packed[i : i + 1]) for i in range(len(packed)))
        data = png(8, 8, 8, 2, b"", packed=b"").replace(png_chunk(b"IDAT", b""), pieces)
        assert set(colours(data)) == {COLOUR}

    @pytest.mark.parametrize("is_interlaced", [False, True])
    @pytest.mark.parametrize(
        ("bits", "colour", "num_bytes"), [(4, 0, 1), (16, 0, 2), (8, 2, 3), (8, 3, 1), (8, 4, 2), (16, 6, 8)]
    )
    def test_of_pixels_whose_rows_end_before_their_sum(self, bits, colour, num_bytes, is_interlaced):
        pixels = 63 * np.random.default_rng(1).integers(0, 4, (9, 11, num_bytes), np.uint8)
        is_packed = is_interlaced and bits >= 8
        rows = adam7(pixels) if is_packed else b"".join(b"\0" + row.tobytes() for row in pixels)
        palette = (png_chunk(b"PLTE", bytes(768)),) if colour == 3 else ()
        packed = zlib.compress(rows)

        def file(packed):
            width = 11 * 8 // bits if bits < 8 else 11
            return png(width, 9, bits, colour, b"", packed=packed, chunks=palette, is_interlaced=is_packed)

        assert not is_refused(file(packed))
        for bit in range(8 * len(packed)):
            flipped = bytearray(packed)
            flipped[bit // 8] ^= 1 << bit % 8
            if not is_refused(file(bytes(flipped))):
                zlib.decompress(flipped)  # raises nothing: few changes of little data have the same sum

    def test_of_pixels_without_their_sum(self):
        packed = zlib.compress(ROWS)
        assert all(is_refused(png(8, 8, 8, 2, b"", packed=packed[:-cut])) for cut in range(1, 5))

    @pytest.mark.parametrize("surplus", [1, 1 << 16])
    def test_surplus_is_none(self, surplus):
        assert set(colours(png(8, 8, 8, 2, ROWS + bytes(surplus)))) == {COLOUR}

    def test_of_pixels_without_end(self):
        assert is_refused(png(8, 8, 8, 2, ROWS + bytes(1 << 21)))

    def test_of_any_bit_of_a_file(self):
        data = png(8, 8, 8, 2, ROWS, struct.pack(">3H", *COLOUR), chunks=(png_chunk(b"gAMA", b"\0\0\0\1"),))
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            assert is_refused(bytes(flipped)) or set(colours(bytes(flipped))) == {WHITE}

    def test_cut_short(self):
        data = encode(make_picture("noise", 20, 30), "PNG")
        whole = decode_image(data, max_pixels=10_000)
        end = len(data) - len(png_chunk(b"IEND", b""))
        assert all(is_refused(data[:length]) for length in range(end))
        assert (decode_image(data[:end], max_pixels=10_000) == whole).all()

    def test_of_an_image_that_is_only_opened(self):
        flipped = bytearray(zlib.compress(ROWS, 0))
        flipped[0] = 0
        image = Image.open(io.BytesIO(png(8, 8, 8, 2, b"", packed=bytes(flipped))))
        with pytest.raises(UserError, match="can't be decoded"):
            image_to_rgb(image, max_pixels=100)

    @pytest.mark.parametrize(
        "data",
        [
            png(8, 8, 8, 2, ROWS, chunks=(png_chunk(b"CgBI", b"\0\0\0\0"),)),
            png(8, 8, 8, 3, (b"\0" + bytes(8)) * 8),
            png(8, 8, 8, 2, ROWS, b"\0\1"),
            png(8, 8, 8, 2, ROWS).replace(b"IHDR", b"IHDA"),
        ],
        ids=["unknown chunk", "no palette", "half a colour", "no header"],
    )
    def test_of_what_a_decoder_has_to_know(self, data):
        assert is_refused(data)


def adam7(pixels):
    """The rows of an interlaced picture: [height, width, bytes] uint8."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    return b"".join(
        b"\0" + row.tobytes()
        for top, left, down, right in passes
        for row in pixels[top::down, left::right]
        if row.size
    )


class TestTransparentValue:
    """The value that tRNS names is white and no other, whatever the depth of the pixels."""

    @pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
    def test_of_grey(self, bits):
        values = list(range(1 << bits)) if bits < 8 else [0, 1, 85, 255, 256, 257, 511, 43690][: 4 * bits // 8]
        row = np.array(values, ">u2" if bits == 16 else np.uint8)
        if bits < 8:
            row = np.packbits((row[:, None] >> np.arange(bits - 1, -1, -1)) & 1)
        scale = (lambda value: value >> 8) if bits == 16 else (lambda value: value * 255 // ((1 << bits) - 1))
        for clear in values[:-1]:  # the last is white by itself
            data = png(len(values), 1, bits, 0, b"\0" + row.tobytes(), struct.pack(">H", clear))
            expected = [WHITE if value == clear else (scale(value),) * 3 for value in values]
            assert colours(data) == expected
            image = Image.open(io.BytesIO(data))
            assert (image_to_rgb(image, max_pixels=100) == np.array([expected])).all()

    @pytest.mark.parametrize("is_interlaced", [False, True])
    @pytest.mark.parametrize("bits", [8, 16])
    def test_of_colours(self, bits, is_interlaced):
        step = 1 if bits == 8 else 257
        shades = np.zeros((8, 8, 3), ">u2" if bits == 16 else np.uint8)
        shades[..., 0] = 7 * step
        shades[2, 3] = 7 * step, 0, 1  # of 16 bits another colour, of which 8 bits are the same
        shades[5, 6] = 9 * step, 4 * step, 200 * step
        pixels = shades.view(np.uint8).reshape(8, 8, -1)
        rows = adam7(pixels) if is_interlaced else b"".join(b"\0" + row.tobytes() for row in pixels)
        for clear, (y, x) in {(7 * step, 0, 1): (2, 3), (9 * step, 4 * step, 200 * step): (5, 6)}.items():
            data = png(8, 8, bits, 2, rows, struct.pack(">3H", *clear), is_interlaced=is_interlaced)
            expected = (shades // step).astype(np.uint8)
            expected[y, x] = 255
            assert (decode_image(data, max_pixels=100) == expected).all()
            assert (image_to_rgb(Image.open(io.BytesIO(data)), max_pixels=100) == expected).all()

    def test_of_16_bit_colours_that_are_turned(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        row = b"\0" + struct.pack(">6H", 256, 0, 0, 257, 0, 0)
        data = png(2, 1, 16, 2, row, struct.pack(">3H", 257, 0, 0), chunks=(png_chunk(b"eXIf", exif.tobytes()[6:]),))
        assert decode_image(data, max_pixels=10).tolist() == [[[1, 0, 0]], [[255, 255, 255]]]

    def test_bits_above_the_depth_count_for_nothing(self):
        assert colours(png(2, 1, 8, 0, b"\0\x05\x06", struct.pack(">H", 0x0105))) == [WHITE, (6, 6, 6)]
        assert colours(png(2, 1, 1, 0, b"\0\x40", struct.pack(">H", 2))) == [WHITE, WHITE]

    @pytest.mark.parametrize("colour", [4, 6])
    def test_beside_alpha_it_counts_for_nothing(self, colour):
        pixel = bytes([7] * (1 if colour == 4 else 3)) + b"\xff"
        assert colours(png(1, 1, 8, colour, b"\0" + pixel, struct.pack(">3H", 7, 7, 7))) == [(7, 7, 7)]

    def test_behind_the_pixels_it_counts_for_nothing(self):
        clear = png_chunk(b"tRNS", struct.pack(">3H", *COLOUR))
        end = png_chunk(b"IEND", b"")
        assert set(colours(png(8, 8, 8, 2, ROWS).replace(end, clear + end))) == {COLOUR}


class TestNotes:
    """What stands beside the pixels may be as large as it likes."""

    @pytest.mark.parametrize(
        ("name", "head"),
        [
            (b"tEXt", b"workflow\0"),
            (b"zTXt", b"workflow\0\0"),
            (b"zTXt", b"Raw profile type exif\0\0"),
            (b"iTXt", b"workflow\0\1\0\0\0"),
            (b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0"),
            (b"iCCP", b"profile\0\0"),
            (b"prVt", b""),
        ],
    )
    def test_large(self, name, head):
        body = b"a" * (2 << 20)
        body = body if name in (b"tEXt", b"prVt") else zlib.compress(body)
        notes = [png_chunk(name, head + body)] * 3
        assert set(colours(png(8, 8, 8, 2, ROWS, chunks=notes))) == {COLOUR}

    def test_many(self):
        notes = [png_chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 1_000_000))] * 70
        assert set(colours(png(8, 8, 8, 2, ROWS, chunks=notes))) == {COLOUR}

    @pytest.mark.parametrize("body", [b"profile\0\0garbage", b"", b"\0\0\0"])
    def test_broken(self, body):
        notes = [png_chunk(name, body) for name in (b"iCCP", b"zTXt", b"iTXt", b"pHYs", b"gAMA", b"acTL")]
        assert set(colours(png(8, 8, 8, 2, ROWS, chunks=notes))) == {COLOUR}

    @pytest.mark.parametrize("is_packed", [False, True])
    @pytest.mark.parametrize("is_behind", [False, True])
    def test_how_it_is_turned_is_read_from_texts_too(self, is_packed, is_behind):
        exif = Image.Exif()
        exif[0x0112] = 6
        raw = exif.tobytes()
        found = []
        for key, text in (
            ("Raw profile type exif", f"\nexif\n{len(raw):8d}\n{raw.hex()}\n"),
            ("XML:com.adobe.xmp", '<x:xmpmeta><d tiff:Orientation="6"/></x:xmpmeta>'),
        ):
            info = PngInfo()
            add = info.add_itxt if key.startswith("XML") else info.add_text
            add(key, text, zip=is_packed)
            data = encode(Image.new("RGB", (6, 4)), "PNG", pnginfo=info)
            if is_behind:
                start, end = (
                    data.index(b"iTXt" if key.startswith("XML") else b"zTXt" if is_packed else b"tEXt") - 4,
                    0,
                )
                end = start + 12 + struct.unpack_from(">I", data, start)[0]
                note, data = data[start:end], data[:start] + data[end:]
                data = data[:-12] + note + data[-12:]
            found.append(decode_image(data, max_pixels=100).shape)
        assert found == [(6, 4, 3)] * 2
