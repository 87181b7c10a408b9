"""Training the embedded chart reader; see README.md here. No part of the package."""
