"""An image per file, decoded by Pillow: a dictionary of `image` (uint8; height, width and, in colour, three channels), `label`
(the number of its folder's name among all of them in their order), and `name`, as the manifest has it.

The pixels of a JPEG depend on the build of Pillow, which the record of a run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.data.files.readers.listing import Listed, Read

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
Classes = Annotated[tuple[str, ...], Field(description="The names of the folders; a label is a number among them.")]
_FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "BMP",
    "GIF",
    "TIFF",
)  # others may start programs: of EPS Pillow has Ghostscript make one
_DEEP = ("I", "F")  # modes of integers of 16 and 32 bits, and of float32
Mode = Annotated[Literal["RGB", "L"], Field(description="In colour, or gray.")]


def images(path: Path, name: str, *, classes: Classes = ("",), mode: Mode = "RGB") -> _Image:
    return _Image(path, name, classes, mode)


def listed(names: list[str], read: Read, options: Mapping[str, Any]) -> Listed:  # noqa: ARG001
    """Every file that is called like an image."""
    found = [name for name in names if name.lower().endswith(SUFFIXES)]
    classes = sorted({PurePosixPath(name).parent.name for name in found})
    return Listed(dict.fromkeys(found), {"classes": classes, **options})


class _Image:
    held = 0

    def __init__(self, path: Path, name: str, classes: tuple[str, ...], mode: str) -> None:
        folder = PurePosixPath(name).parent.name
        if folder not in classes:
            raise ValueError(f"lies in {folder}, which is none of the classes {', '.join(classes)}")
        self._path, self._name, self._label, self._mode = path, name, tuple(classes).index(folder), mode

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        import numpy
        from PIL import Image

        if number:
            raise IndexError(number)
        try:
            with Image.open(self._path, formats=_FORMATS) as image:
                if image.mode.startswith(_DEEP):
                    raise ValueError(
                        f"has pixels of more than 8 bits (mode {image.mode} of Pillow), which would be cut off at 255: scale "
                        "them in a reader of your own, or write it with 8 bits"
                    )
                pixels = numpy.array(image.convert(self._mode))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"is no image that Pillow reads: {error}") from error
        return {"image": pixels, "label": self._label, "name": self._name}

    def close(self) -> None:
        pass
