//go:build linux && cgo

package gpuwait

func init() { nvmlTables["cgo"] = newNVMLCgo }
