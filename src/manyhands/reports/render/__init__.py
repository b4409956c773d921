"""A run or a comparison as text, SVG or another tool's format."""
