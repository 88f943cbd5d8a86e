"""What users of Hugging Face's libraries import: `turnout.huggingface.transformers`."""
