"""Decoding: formats, depth, transparency, area resizing."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from odin.data.images import list_images, read_pixels, read_size, resize_area

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
BLACK, WHITE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def ramp_file(tmp_path, mode: str):
    """The same gray ramp in one of Pillow's modes, or as 16-bit gray."""
    path = tmp_path / f"{mode.replace(';', '')}.png"
    if mode == "I;16":
        Image.fromarray(RAMP.astype(np.uint16) * 257).save(path)
    elif mode == "P":
        Image.fromarray(RAMP).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path)
    else:
        Image.fromarray(RAMP).convert(mode).save(path)
    return path


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "I;16", "P"])
def test_every_format_of_a_ramp_loads_to_the_same_values(tmp_path, mode):
    pixels = read_pixels(ramp_file(tmp_path, mode), WHITE)
    assert (pixels.shape, pixels.dtype) == ((16, 16, 3), np.float32)
    np.testing.assert_allclose(pixels, np.repeat(RAMP[:, :, None] / 255, 3, axis=2), atol=1e-6)


def write_16_bit_rgb(path, pixels: np.ndarray) -> None:
    """PNG with 16 bits a channel, which Pillow reads but does not write. pixels: [H, W, 3] uint16"""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def test_16_bit_rgb_keeps_its_values_to_eight_bits(tmp_path):
    values = (np.arange(256, dtype=np.uint32) * 257 + 100).clip(0, 65535).astype(np.uint16).reshape(16, 16)
    write_16_bit_rgb(tmp_path / "deep.png", np.repeat(values[:, :, None], 3, axis=2))
    pixels = read_pixels(tmp_path / "deep.png", BLACK)
    assert np.abs(pixels[:, :, 1] - values / 65535).max() <= 1 / 255


def test_alpha_is_mixed_linearly_with_the_background(tmp_path):
    rgba = np.array([[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 51]]], np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    pixels = read_pixels(tmp_path / "a.png", (1.0, 0.5, 0.0))
    color, background = np.array([200, 100, 50]) / 255, np.array([1.0, 0.5, 0.0])
    np.testing.assert_allclose(pixels[0], [color, background, 0.2 * color + 0.8 * background], atol=1e-6)


def test_transparent_palette_colour_counts_as_alpha(tmp_path):
    image = Image.fromarray(np.array([[0, 1]], np.uint8), mode=None).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.save(tmp_path / "p.png", transparency=0)
    np.testing.assert_allclose(read_pixels(tmp_path / "p.png", WHITE)[0], [[1, 1, 1], [0, 1, 0]])


def test_undefined_depth_and_broken_files_are_named(tmp_path):
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(ValueError, match=r"float.tiff: pixel format 'F' has no defined white"):
        read_pixels(tmp_path / "float.tiff", BLACK)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"text.png cannot be read as an image"):
        read_size(tmp_path / "text.png")
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.png")
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cut.png: the image cannot be decoded"):
        read_pixels(tmp_path / "cut.png", BLACK)


def test_size_is_of_the_stored_pixels_and_orientation_is_reported(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_size(tmp_path / "turned.jpg") == (6, 4, 6)
    assert read_pixels(tmp_path / "turned.jpg", BLACK).shape == (4, 6, 3)


def test_resize_area_is_the_exact_block_mean():
    pixels = np.random.default_rng(1).random((12, 20, 3), dtype=np.float32)
    expected = pixels.reshape(6, 2, 5, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resize_area(pixels, 5, 6), expected, atol=1e-6)


def test_resize_area_weights_by_overlap_where_sizes_do_not_divide():
    row = np.array([[0.0, 0.3, 0.9]], np.float32)
    pixels = np.repeat(row[:, :, None], 3, axis=2)
    result = resize_area(pixels, 2, 1)  # two target pixels of 1.5 source pixels each
    np.testing.assert_allclose(result[0, :, 0], [0.1, 0.7], atol=1e-6)


def test_list_images_ignores_what_is_no_image(tmp_path):
    for name in ("b.PNG", "a.jpg", "sub dir/c.tif", ".DS_Store", "Thumbs.db", "._a.jpg", ".hidden/d.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_images(tmp_path) == ["a.jpg", "b.PNG", "sub dir/c.tif"]
