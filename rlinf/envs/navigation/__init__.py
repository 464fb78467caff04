"""Navigation by instruction: find the landmark that a text names in a grid of rooms."""
