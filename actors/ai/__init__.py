"""Job type `ai-task`: a question to a model whose answer has a shape that is checked."""
