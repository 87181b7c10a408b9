"""From a picture, wherever it comes from, to rows of uint8 patches in a file: fetch, decode, resize, cut, hash."""
