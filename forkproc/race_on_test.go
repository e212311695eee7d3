//go:build race

package forkproc_test

const raceBuild = true
