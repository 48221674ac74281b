"""What a run leaves behind: result.json, and lines for a person."""
