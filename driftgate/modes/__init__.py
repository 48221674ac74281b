"""What can be done with a call at the seam: count, digest, replay, shadow. Swapping is the seam's own."""
