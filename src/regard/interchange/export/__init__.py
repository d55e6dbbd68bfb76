"""Hand a model to another runtime: CTranslate2, Hugging Face transformers, ONNX. One file per format, one check for all."""
