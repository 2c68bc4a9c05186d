"""The text: Jane Austen's six novels, out of the Debian package r-cran-janeaustenr.

The novels were first published from 1811 to 1818, and the author died in 1817: they are in the
public domain. The package holds the transcriptions of Project Gutenberg, without its headers.
Nothing of the text is kept in the repository: `novels(cache)` downloads the package, unpacks it
without installing it, and reads the R data in it. A checksum of the text says that it is the same.

    python corpus.py CACHE > novels.txt
"""

import hashlib
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
DATA = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
SHA256 = "ac61ccda562452e41b565ec7e4732bc138e1dc23ca42ab4887815b1595a877e0"
VALIDATION_SHARE = 0.04  # the end of each novel

R_STRING, R_STRINGS = 9, 16  # types of R's serialisation: one string, a vector of them


def fetch(cache):
    """The path of the R data below folder `cache`, downloaded when it is not there."""
    data = cache / DATA
    if not data.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", PACKAGE], cwd=cache, check=True)
        package = next(cache.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=cache, check=True)
    return data


def lines_of(blob):
    """The strings of a serialised R vector of strings (format X, version 2 or 3), else None."""
    version, = struct.unpack_from(">i", blob, 2)
    at = 14
    if version == 3:  # names the encoding
        at += 4 + struct.unpack_from(">i", blob, at)[0]
    flags, count = struct.unpack_from(">ii", blob, at)
    if blob[:2] != b"X\n" or flags & 0xFF != R_STRINGS:
        return None
    at += 8
    lines = []
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", blob, at)
        assert flags & 0xFF == R_STRING and length >= 0
        lines.append(blob[at + 8 : at + 8 + length].decode("utf-8"))
        at += 8 + length
    return lines


def read_r_data(path):
    """All vectors of strings in an R lazy-load database: records of a length and a zlib stream."""
    blob = path.read_bytes()
    at = 0
    while at < len(blob):
        stream = zlib.decompressobj()
        lines = lines_of(stream.decompress(blob[at + 4 :]))
        at = len(blob) - len(stream.unused_data)
        if lines:
            yield lines


def clean(lines):
    """Paragraphs, one a line, without marks of italics and without what editors added."""
    text = "\n".join(line.strip() for line in lines)
    text = re.sub("[_*]", "", text.split("A NOTE ON THE TEXT")[0])
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(part for part in paragraphs if part and part[0] != "[") + "\n"


def novels(cache):
    """The novels as strings, in the package's order."""
    texts = [clean(lines) for lines in read_r_data(fetch(Path(cache)))]
    found = hashlib.sha256("".join(texts).encode()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"the text of {PACKAGE} is not the one this was made with: {found}")
    return texts


def split(texts):
    """(training texts, validation texts): the end of each novel validates."""
    at = [text.index("\n", int(len(text) * (1 - VALIDATION_SHARE))) + 1 for text in texts]
    return [t[:i] for t, i in zip(texts, at)], [t[i:] for t, i in zip(texts, at)]


if __name__ == "__main__":
    sys.stdout.write("".join(novels(sys.argv[1])))
