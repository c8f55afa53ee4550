"""Front ends: model files to graphs."""
