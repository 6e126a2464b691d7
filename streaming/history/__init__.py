"""Reading the past: ranges of topics by time and by offsets, for reports, verification, searches and replays."""
