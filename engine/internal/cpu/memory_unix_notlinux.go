//go:build unix && !linux

package cpu

const mapNoReserve = 0
