//go:build linux && (amd64 || arm64)

package gpuwait

func init() { nvmlTables["dyn"] = newNVMLDyn }
