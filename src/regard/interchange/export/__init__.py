"""Export to other runtimes: CTranslate2, Hugging Face transformers, ONNX. One file per format."""
