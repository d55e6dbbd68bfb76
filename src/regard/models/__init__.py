"""Models: any encoder with any decoder makes a translator, a decoder alone a language model."""
