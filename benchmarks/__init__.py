"""How fast the engines are, against plain PyTorch, other frameworks and the machine itself."""
