"""From tables to people: tables, figures and one page, from an OUT folder's files alone."""
