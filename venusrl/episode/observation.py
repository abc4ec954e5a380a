"""What the policy gets to see of a command's end. Pure."""

from sandboxd.client import ExitReason

# Shown after the output, as a terminal would show it.
_ENDINGS = {
    ExitReason.TIMEOUT: "error: the command took too long and was killed",
    ExitReason.OOM: "error: the command was killed: out of memory",
    ExitReason.KILLED: "error: the command was killed",
}


def cut(output: bytes, budget_bytes: int, total_bytes: int | None = None) -> bytes:
    """``output`` within ``budget_bytes``, the middle replaced by a mark where it is too long.

    ``total_bytes`` is how much the command wrote, if more than ``output`` holds. Both ends are
    kept: errors come last, headings first.
    """
    total = len(output) if total_bytes is None else max(total_bytes, len(output))
    if total <= budget_bytes:
        return output
    # The mark counts: its length is bounded by that of the largest number it can show.
    mark_bytes = len(_mark(total))
    kept = max(0, budget_bytes - mark_bytes)
    head, tail = kept - kept // 3, kept // 3
    if total > len(output):
        # The end of the output was never sent here.
        head, tail = min(kept, len(output)), 0
    mark = _mark(total - head - tail)
    return output[:head] + mark + output[len(output) - tail :]


def _mark(missing_bytes: int) -> bytes:
    return f"\n[{missing_bytes} bytes cut]\n".encode()


def render(
    output: bytes, reason: ExitReason, *, budget_bytes: int, total_bytes: int | None = None
) -> bytes:
    """The observation of a command that ran."""
    shown = cut(output, budget_bytes, total_bytes)
    ending = _ENDINGS.get(reason)
    if ending is None:
        return shown
    separator = b"" if not shown or shown.endswith(b"\n") else b"\n"
    return shown + separator + ending.encode() + b"\n"


def render_error(message: str) -> bytes:
    """The observation of an action that did not run."""
    return f"error: {message}\n".encode()
