"""Decoding: every mode ends as upright RGB on white, everything hostile as a UserError that tells nothing."""

from __future__ import annotations

import contextlib
import io
import struct

import numpy as np
import pytest
from PIL import Image

from chiasm.errors import UserError
from chiasm.multimodal.decode import array_to_rgb, decode_image, image_to_rgb
from chiasm.multimodal.in_memory import source_of_object
from tests.multimodal.encoded import bmp, encode, noise, png, png_bomb
from tests.multimodal.pictures import make_picture

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def decode(data, max_pixels=1_000_000):
    pixels = decode_image(data, max_pixels=max_pixels, param="image_url")
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.flags.writeable
    return pixels


def colours(data):
    """The pixels of a small picture, row by row."""
    return [tuple(pixel) for pixel in decode(data).reshape(-1, 3).tolist()]


def check_undecodable(data):
    with pytest.raises(UserError) as caught:
        decode(data)
    error = caught.value
    assert error.message == (
        "the data can't be decoded as an image; accepted formats are JPEG, PNG, WEBP, GIF, BMP."
    )  # nothing of the decoder's own words, which have held addresses and paths
    assert (error.param, error.status) == ("image_url", 400)


@pytest.mark.parametrize("image_format", ["PNG", "BMP", "WEBP"])
def test_lossless_formats_keep_every_pixel(image_format):
    picture = make_picture("noise", 31, 17)
    assert (decode(encode(picture, image_format, lossless=True)) == picture).all()


def test_jpeg_is_decoded_as_pillow_does():
    data = noise(40, 50, "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        assert (decode(data) == np.array(image)).all()


TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class TestOrientation:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
    def test_is_applied(self, orientation, image_format):
        upright = Image.new("RGB", (48, 32), WHITE)
        upright.paste(RED, (0, 0, 16, 16))
        stored = upright.transpose(TURNED[orientation]) if orientation in TURNED else upright
        exif = Image.Exif()
        exif[0x0112] = orientation
        pixels = decode(encode(stored, image_format, exif=exif)).astype(int)
        assert pixels.shape == (32, 48, 3)
        assert abs(pixels[8, 8] - RED).max() < 20
        assert abs(pixels[28, 44] - WHITE).max() < 20

    @pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0", b"x" * 60])
    def test_broken_notes_are_ignored(self, exif):
        picture = make_picture("smooth", 16, 24)
        assert decode(encode(picture, "PNG", exif=exif)).shape == (16, 24, 3)

    def test_unknown_values_are_ignored(self):
        exif = Image.Exif()
        exif[0x0112] = 99
        assert decode(noise(16, 24, "JPEG", exif=exif)).shape == (16, 24, 3)


class TestModes:
    def test_alpha_is_laid_on_white(self):
        """Threat: orientation and alpha (CVE-2026-12491, GHSA-8jr5-v98p-w75m)."""
        rows = b"\0" + bytes([*RED, 255, *GREEN, 0, 0, 0, 0, 128])
        assert colours(png(3, 1, 8, 6, rows)) == [RED, WHITE, (127, 127, 127)]

    def test_grey_with_alpha(self):
        assert colours(png(2, 1, 8, 4, b"\0" + bytes([9, 255, 9, 0]))) == [(9, 9, 9), WHITE]

    def test_palette(self):
        image = Image.new("P", (2, 1))
        image.putpalette([*RED, *BLUE])
        image.putpixel((1, 0), 1)
        assert colours(encode(image)) == [RED, BLUE]
        assert colours(encode(image, transparency=1)) == [RED, WHITE]
        assert colours(encode(image, "GIF", transparency=0)) == [WHITE, BLUE]
        assert colours(encode(image, transparency=b"\xff\x00")) == [RED, WHITE]

    def test_palettes_with_equal_indices_stay_apart(self):
        images = [Image.new("P", (2, 2)) for _ in range(2)]
        for image, colour in zip(images, (RED, BLUE), strict=True):
            image.putpalette(colour)
        assert colours(encode(images[0])) != colours(encode(images[1]))

    @pytest.mark.parametrize(
        ("bits", "colour", "rows", "transparency", "expected"),
        [
            (8, 0, bytes([16, 32]), struct.pack(">H", 16), [WHITE, (32, 32, 32)]),
            (8, 2, bytes([1, 2, 3, *RED]), struct.pack(">3H", 1, 2, 3), [WHITE, RED]),
            (1, 0, b"\x40", struct.pack(">H", 0), [WHITE, WHITE]),
            (16, 0, struct.pack(">2H", 65535, 1000), struct.pack(">H", 65535), [WHITE, (3, 3, 3)]),
        ],
        ids=["grey", "colour", "bits", "16-bit grey"],
    )
    def test_one_transparent_value(self, bits, colour, rows, transparency, expected):
        assert colours(png(2, 1, bits, colour, b"\0" + rows, transparency)) == expected

    def test_16_bits_are_scaled_not_clipped(self):
        grey = png(3, 1, 16, 0, b"\0" + struct.pack(">3H", 0, 32768, 65535))
        assert colours(grey) == [(0, 0, 0), (128, 128, 128), WHITE]
        colour = png(2, 1, 16, 2, b"\0" + struct.pack(">6H", 65535, 0, 0, 32768, 32768, 0))
        assert colours(colour) == [RED, (128, 128, 0)]
        alpha = png(2, 1, 16, 6, b"\0" + struct.pack(">8H", 65535, 0, 0, 65535, 0, 0, 0, 0))
        assert colours(alpha) == [RED, WHITE]

    def test_alpha_of_a_bmp_that_is_nowhere_set_says_nothing(self):
        unset, half = bytes([*RED[::-1], 0]), bytes([*RED[::-1], 255])
        for data in (bmp(2, 1, unset * 2, has_alpha=True), bmp(2, 1, unset * 2, has_alpha=False)):
            assert colours(data) == [RED, RED]
            assert (image_to_rgb(Image.open(io.BytesIO(data)), max_pixels=2) == RED).all()
        assert colours(bmp(2, 1, unset + half, has_alpha=True)) == [WHITE, RED]
        assert colours(bmp(2, 1, unset + half, has_alpha=False)) == [RED, RED]
        for image_format in ("PNG", "WEBP"):  # these are never written with alpha that nobody meant
            assert colours(encode(Image.new("RGBA", (2, 1), (*RED, 0)), image_format)) == [WHITE, WHITE]

    @pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr"])
    def test_other_modes(self, mode):
        image = Image.fromarray(make_picture("smooth", 16, 24)).convert(mode)
        data = encode(image, "JPEG" if mode in ("CMYK", "YCbCr") else "PNG")
        with Image.open(io.BytesIO(data)) as reopened:
            assert (decode(data) == np.array(reopened.convert("RGB"))).all()


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_taken(image_format):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE, GREEN)]
    data = encode(frames[0], image_format, save_all=True, append_images=frames[1:], lossless=True)
    assert set(colours(data)) == {RED}


class TestHostile:
    @pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
    @pytest.mark.parametrize("part", [0.02, 0.3, 0.9])
    def test_cut_short(self, image_format, part):
        data = noise(64, 64, image_format)
        check_undecodable(data[: int(len(data) * part)])

    @pytest.mark.parametrize(
        "data",
        [b"", b"\0", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"<svg/>", b"A" * 5000],
    )
    def test_garbage(self, data):
        check_undecodable(data)

    def test_flipped_bytes_never_raise_anything_else(self):
        random = np.random.RandomState(1)
        for image_format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
            data = np.frombuffer(noise(24, 24, image_format), np.uint8)
            for _ in range(60):
                broken = data.copy()
                broken[random.randint(0, len(data), 5)] = random.randint(0, 256, 5)
                with contextlib.suppress(UserError):
                    decode(broken.tobytes())

    @pytest.mark.parametrize("image_format", ["TIFF", "JPEG2000", "PPM", "ICO", "PCX", "TGA", "AVIF"])
    def test_formats_that_are_not_accepted(self, image_format):
        check_undecodable(noise(32, 32, image_format))

    @pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (9_000, 9_000), (2**31 - 1, 1)])
    def test_bombs_are_refused_by_their_header(self, width, height):
        """Threat: decompression bomb."""
        data = png_bomb(width, height)
        assert len(data) < 70
        with pytest.raises(UserError, match="1000000 pixels in size") as caught:
            decode(data)
        assert caught.value.status == 400

    def test_the_limit_is_exact(self):
        assert decode(noise(10, 10), max_pixels=100).shape == (10, 10, 3)
        with pytest.raises(UserError, match="image_url must be between 1 and 99 pixels in size, got '10 x 10'"):
            decode(noise(10, 10), max_pixels=99)

    def test_a_frame_larger_than_its_gif_is_still_bounded(self):
        data = noise(8, 8, "GIF")
        descriptor = b"\x2c" + struct.pack("<4H", 0, 0, 8, 8)  # left, top, width, height
        assert data.count(descriptor) == 1
        with pytest.raises(UserError, match="got '1100 x 1000'"):
            decode(data.replace(descriptor, b"\x2c" + struct.pack("<4H", 0, 0, 1100, 1000)))


class TestObjects:
    """What the offline API takes."""

    def test_arrays(self):
        picture = make_picture("noise", 20, 30)
        assert (array_to_rgb(picture, max_pixels=600) == picture).all()
        assert (array_to_rgb(picture[..., 0], max_pixels=600) == picture[..., :1]).all()
        clear = np.zeros((20, 30, 4), np.uint8)
        assert (array_to_rgb(clear, max_pixels=600) == 255).all()

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            ((3, 20, 30), "uint8"),
            ((3, 20, 3), "uint8"),
            ((4, 9, 3), "uint8"),
            ((3, 1, 3), "uint8"),
            ((20, 30, 1), "uint8"),
            ((20, 30, 2), "uint8"),
            ((1, 20, 30, 3), "uint8"),
            ((20,), "uint8"),
            ((), "uint8"),
            ((0, 5, 3), "uint8"),
            ((20, 30, 3), "float32"),
            ((20, 30, 3), "int64"),
            ((20, 30), "bool"),
            ((600, 2, 3), "uint8"),
        ],
    )
    def test_arrays_that_are_refused(self, shape, dtype):
        with pytest.raises(UserError, match=r"image must be"):
            array_to_rgb(np.zeros(shape, dtype), max_pixels=1000)

    def test_images(self):
        picture = make_picture("noise", 20, 30)
        assert (image_to_rgb(Image.fromarray(picture), max_pixels=600) == picture).all()
        with pytest.raises(UserError, match="between 1 and 599 pixels"):
            image_to_rgb(Image.fromarray(picture), max_pixels=599)
        for mode in ("I", "F"):
            with pytest.raises(UserError, match="convert it to RGB"):
                image_to_rgb(Image.new(mode, (5, 5)), max_pixels=600)
        with pytest.raises(UserError, match="between 1 and"):
            image_to_rgb(Image.new("RGB", (0, 5)), max_pixels=600)

    def test_as_a_source(self):
        picture = make_picture("noise", 20, 30)
        for given in (picture, Image.fromarray(picture)):
            source = source_of_object(given, max_pixels=600)
            assert (source.kind, source.shape, source.payload) == ("rgb", (20, 30, 3), picture.tobytes())
        with pytest.raises(UserError, match="a URL, a PIL image or a numpy array, got 'int'"):
            source_of_object(7, max_pixels=600)
