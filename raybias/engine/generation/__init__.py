"""Write text after prompts, each token drawn under its request's own key."""
