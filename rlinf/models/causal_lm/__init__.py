"""Language models of transformers, as trainer and critic use them."""
