"""Other systems that translate with the weights of a regard model."""
