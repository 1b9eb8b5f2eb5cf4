"""Pictures for the gallery's surfaces: photographs that scikit-image ships inside its wheel, and generated patterns.

Nothing is downloaded: a photograph is read from the installed package or refused.
Legend: H and W in texels, K the side of a square pattern.
"""

from __future__ import annotations

import importlib.util
import itertools
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

MAX_TEXELS = 256  # longest side of a photograph: finer detail only aliases at the gallery's image sizes
PATTERN_TEXELS = 256  # side of a generated pattern

Colour = tuple[float, float, float]  # sRGB, 0..1

# Photographs fit to hang on a wall, of those in the wheel: all with structure at several scales.
PICTURES = (
    "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png",
    "retina.jpg", "ihc.png", "camera.png", "color.png", "coins.png", "page.png", "horse.png", "text.png",
    "clock_motion.png", "cell.png", "moon.png", "logo.png",
)  # fmt: skip


@cache
def photo(name: str, max_texels: int = MAX_TEXELS) -> np.ndarray:
    """A photograph from scikit-image's wheel, shrunk to at most `max_texels`. [H, W, 3] uint8

    Raises ValueError where scikit-image is not installed or does not ship that file.
    """
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ValueError(
            "the gallery takes its photographs from scikit-image, which is missing: pip install odin[gallery]"
        )
    path = Path(spec.origin).parent / "data" / name
    if not path.is_file():
        raise ValueError(f"scikit-image does not ship {path}; install scikit-image 0.26, whose wheel has it")
    with Image.open(path) as image:
        flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    flat.thumbnail((max_texels, max_texels), Image.Resampling.BOX)
    pixels = np.asarray(flat)
    pixels.flags.writeable = False
    return pixels


def tinted(name: str, colour: Colour, *, contrast: float = 1.0, max_texels: int = MAX_TEXELS) -> np.ndarray:
    """A grey photograph's structure in another colour: its mean becomes `colour`. [H, W, 3] uint8"""
    grey = photo(name, max_texels).mean(axis=2) / 255.0
    return _to_uint8(np.asarray(colour) * (1 + contrast * (grey / grey.mean() - 1))[..., None])


def bricks(colour: Colour, *, contrast: float = 1.0, max_texels: int = MAX_TEXELS) -> np.ndarray:
    """A brick wall in level courses; the photograph's run upright. [H, W, 3] uint8"""
    return np.ascontiguousarray(np.rot90(tinted("brick.png", colour, contrast=contrast, max_texels=max_texels)))


def value_noise(rng: np.random.Generator, *, first_cells: int = 4, gain: float = 0.55) -> np.ndarray:
    """Smooth random pattern that repeats without a seam, mean about 0.5. [K, K] float64, 0..1

    Octaves of bilinear value noise with a smoothstep fade (Perlin 1985); `gain` is the ratio of amplitudes.
    """
    total, amplitude, weight = np.zeros((PATTERN_TEXELS, PATTERN_TEXELS)), 1.0, 0.0
    cells = first_cells
    while cells <= PATTERN_TEXELS // 2:
        lattice = rng.random((cells, cells))
        at = np.arange(PATTERN_TEXELS) * cells / PATTERN_TEXELS
        low = at.astype(int)
        fade = (at - low) ** 2 * (3 - 2 * (at - low))
        high = (low + 1) % cells
        rows = lattice[low] * (1 - fade)[:, None] + lattice[high] * fade[:, None]
        total += amplitude * (rows[:, low] * (1 - fade) + rows[:, high] * fade)
        weight += amplitude
        amplitude *= gain
        cells *= 2
    return total / weight


def planks(rng: np.random.Generator, colour: Colour, *, num_rows: int = 8) -> np.ndarray:
    """Boards one above the other, with grain along them and joints. [K, K, 3] uint8"""
    grain = value_noise(rng, first_cells=8, gain=0.75)
    grain = grain[:, np.arange(PATTERN_TEXELS) // 8 * 2 % PATTERN_TEXELS]  # stretched along the boards
    pixels = np.empty((PATTERN_TEXELS, PATTERN_TEXELS, 3))
    edges = np.linspace(0, PATTERN_TEXELS, num_rows + 1).astype(int)
    for top, bottom in itertools.pairwise(edges):
        board = np.asarray(colour) * rng.uniform(0.75, 1.2)
        pixels[top:bottom] = board * (0.5 + np.roll(grain, rng.integers(PATTERN_TEXELS), 1)[top:bottom, :, None])
        pixels[top : top + 2] *= 0.5
        joint = rng.integers(PATTERN_TEXELS - 2)
        pixels[top:bottom, joint : joint + 2] *= 0.5
    return _to_uint8(pixels)


def tiles(rng: np.random.Generator, light: Colour, dark: Colour, *, num_tiles: int = 4) -> np.ndarray:
    """A chequered floor with joints. [K, K, 3] uint8"""
    index = np.arange(PATTERN_TEXELS) * num_tiles // PATTERN_TEXELS
    even = (index[:, None] + index) % 2 == 0
    pixels = np.where(even[..., None], light, dark) * (0.7 + 0.6 * value_noise(rng, gain=0.7))[..., None]
    joint = np.arange(PATTERN_TEXELS) % (PATTERN_TEXELS // num_tiles) < 4
    pixels[joint] *= 0.6
    pixels[:, joint] *= 0.6
    return _to_uint8(pixels)


def plaster(rng: np.random.Generator, colour: Colour, *, contrast: float = 0.9, num_patches: int = 1) -> np.ndarray:
    """Cloudy colour, in a chequer of slightly different patches when `num_patches` > 1. [K, K, 3] uint8"""
    shade = 1 + contrast * (value_noise(rng) - 0.5) * 2
    index = np.arange(PATTERN_TEXELS) * num_patches // PATTERN_TEXELS
    patches = rng.uniform(0.82, 1.12, (num_patches, num_patches))[index][:, index]
    return _to_uint8(np.asarray(colour) * (shade * patches)[..., None])


def facade(rng: np.random.Generator, wall: Colour, *, num_columns: int = 5, num_rows: int = 5) -> np.ndarray:
    """A house front with rows of windows, some of them lit. [K, K, 3] uint8"""
    pixels = np.asarray(wall) * (0.75 + 0.5 * value_noise(rng, first_cells=8, gain=0.7))[..., None]
    width, height = PATTERN_TEXELS // num_columns, PATTERN_TEXELS // num_rows
    for row in range(num_rows):
        for column in range(num_columns):
            top, left = int((row + 0.2) * height), int((column + 0.22) * width)
            bottom, right = top + int(0.6 * height), left + int(0.56 * width)
            pixels[top - 2 : bottom + 2, left - 2 : right + 2] = np.asarray(wall) * 0.6
            lit = rng.random() < 0.2
            pane = np.array([0.92, 0.8, 0.5]) if lit else np.array([0.3, 0.4, 0.5]) * rng.uniform(0.6, 1.5)
            pixels[top:bottom, left:right] = pane * np.linspace(1.1, 0.85, bottom - top)[:, None, None]
    return _to_uint8(pixels)


def sky(rng: np.random.Generator) -> np.ndarray:
    """Clouds over a pale horizon as linear radiance, longitude by latitude from the zenith down. [K, 2 K, 3] float32"""
    polar = np.linspace(0, np.pi, PATTERN_TEXELS)[:, None, None]
    height = np.clip(np.cos(polar), 0, 1) ** 0.6  # 0 at the horizon and below
    blue = np.array([0.80, 0.87, 0.94]) + (np.array([0.30, 0.50, 0.86]) - np.array([0.80, 0.87, 0.94])) * height
    noise = np.concatenate([value_noise(rng), value_noise(rng)], axis=1)
    # The two squares meet in a soft seam, since each repeats only by itself.
    blend = np.clip(np.abs(np.arange(2 * PATTERN_TEXELS) - PATTERN_TEXELS) / 24.0, 0, 1)
    blend *= np.clip(np.minimum(np.arange(2 * PATTERN_TEXELS), np.arange(2 * PATTERN_TEXELS)[::-1]) / 24.0, 0, 1)
    cover = np.clip((noise - 0.48) * 5, 0, 1)[..., None] * 0.85 * blend[:, None]
    return to_linear(blue * (1 - cover) + np.array([0.96, 0.96, 0.97]) * cover).astype(np.float32)


def to_linear(srgb: np.ndarray) -> np.ndarray:
    """Linear light of sRGB values in 0..1 (IEC 61966-2-1)."""
    srgb = np.asarray(srgb, np.float64)
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def to_srgb(linear: np.ndarray) -> np.ndarray:
    """sRGB values of linear light in 0..1 (IEC 61966-2-1)."""
    linear = np.clip(np.asarray(linear, np.float64), 0, 1)
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def _to_uint8(pixels: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
