//go:build linux && !cgo && (amd64 || arm64)

package gpuwait

// openNVMLTable calls the library directly where there is no cgo.
var openNVMLTable = newNVMLDyn
