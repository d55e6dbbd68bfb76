"""The explorer's page beside BertViz's head view, in Chromium, on the same matrices."""
