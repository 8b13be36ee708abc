"""procap: two similar images in, one sentence out that says what changed and how."""
