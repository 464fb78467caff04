"""GR00T N1.5: features of Eagle, and a diffusion transformer that attends to them."""
