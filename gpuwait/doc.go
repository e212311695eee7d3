// Package gpuwait measures who holds GPU memory, waits until it clears, and leases GPUs to tests. It knows nothing of any engine.
package gpuwait
