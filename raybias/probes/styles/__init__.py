"""Text styles: by rule, from files, by a checkpoint, and people's judgement of them."""
