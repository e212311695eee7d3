//go:build !cgo

package corpus

var cgoCases []Case
