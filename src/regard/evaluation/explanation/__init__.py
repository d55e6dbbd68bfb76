"""Is attention explanation? The tests of the literature as numbers: `faithfulness` runs them."""
