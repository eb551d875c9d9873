"""Rows of data files by number, however many there are. Start with `index`: `open_rows` gives rows and their digests.

    source        which files a configuration means, and their format
    table         the interface of a table of rows
    json_lines    JSON lines, read at the byte offsets of their lines
    file_columns  whether the columns of files fit, before `datasets` reads them
    hub           whether the Hugging Face hub answers
    hugging_face  what `datasets` reads, memory-mapped as Arrow
    opening       the table of a source, in any process
    item          a prompt and an answer from the columns of a row
    digest        the digest of each row's prompt, which decides its side of the split
    scan_process  a process that computes digests
    scanning      several of these processes, and their progress
    index         the digests of all rows; those of large data are computed once and cached

Each process that loads small data parses it. Large data (`index.is_large`) is parsed once a machine.
"""
