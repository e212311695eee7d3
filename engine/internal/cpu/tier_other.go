//go:build !amd64

package cpu

func bestTier() Tier { return Generic }

func tierKernels(Tier) *kernels { return nil }
