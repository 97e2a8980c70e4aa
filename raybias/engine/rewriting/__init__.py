"""Put sentences into another style with a checkpoint, and judge whether they kept their meaning."""
