//go:build !linux

package main

// cold cannot drop a file from the page cache here: what the table says about decoding then depends
// on how the files were written.
func cold(string) error { return nil }
