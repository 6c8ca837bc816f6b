"""Images from intercepted gradients."""
