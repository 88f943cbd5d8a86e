"""The names of `ray.train.huggingface`: `transformers`."""
