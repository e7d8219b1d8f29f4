"""The reserved pieces and their ids; they begin every vocabulary of word pieces."""

RESERVED_PIECES = ("[PAD]", "[UNK]", "[START]", "[END]")
PAD, UNK, START, END = range(len(RESERVED_PIECES))
