"""From result.json to tables, pictures and intervals."""
