"""The policy: tokenizer, conversation layout, model shape, warm-up."""
