"""Text of unknown authors, made harmless to look at."""

# Control characters become their pictures (U+2400 and on); line feed and tab stay.
_PICTURES = {code: 0x2400 + code for code in range(32) if code not in (0x09, 0x0A)}
_PICTURES[0x7F] = 0x2421
# C1 controls: one of them, U+009B, starts a terminal's control sequence like ESC [ does.
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    return text.translate(_PICTURES)
