"""Draws a mark onto a picture, or alone: a program for a child process. Arguments: text, source or `-`, target."""

import sys

from PIL import Image, ImageDraw, ImageFont, ImageOps

_STAMP = (640, 160)  # pixels
_SMALLEST = 6.0


def stamp(text: str, size: tuple[int, int]) -> Image.Image:
    """The text, half transparent, white with a dark edge, as large as fits."""
    made = Image.new("RGBA", size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(made)
    letters = max(size[1] * 0.7, _SMALLEST)
    font = ImageFont.load_default(letters)
    while letters > _SMALLEST and draw.textlength(text, font=font) > size[0] * 0.9:
        letters *= 0.85
        font = ImageFont.load_default(letters)
    middle = (size[0] / 2, size[1] / 2)
    edge = max(1, round(letters / 16))
    draw.text(
        middle, text, font=font, anchor="mm", fill=(255, 255, 255, 170), stroke_width=edge, stroke_fill=(0, 0, 0, 150)
    )
    return made


def marked(picture: Image.Image, text: str) -> Image.Image:
    """The picture with the mark in its lower right corner, upright, in the mode it had where that has colours."""
    upright = ImageOps.exif_transpose(picture)
    base = upright.convert("RGBA")
    size = (max(base.width // 4, 8), max(base.width // 16, 8))
    corner = (max(base.width - size[0] - base.width // 50, 0), max(base.height - size[1] - base.height // 50, 0))
    base.alpha_composite(stamp(text, size), corner)
    return base if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info else base.convert("RGB")


def main() -> None:
    text, source, target = sys.argv[1:4]
    if source == "-":
        stamp(text, _STAMP).save(target, format="PNG")
        return
    with Image.open(source) as picture:
        kind = picture.format or "PNG"
        done = marked(picture, text)
    if kind in ("JPEG", "BMP"):
        done = done.convert("RGB")
    done.save(target, format=kind, **({"quality": 92} if kind in ("JPEG", "WEBP") else {}))


if __name__ == "__main__":
    main()
