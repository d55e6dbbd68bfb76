"""Is attention explanation? Measures from the literature; `faithfulness` computes them."""
