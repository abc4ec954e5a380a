"""What several test parts share."""
