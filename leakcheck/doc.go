// Package leakcheck proves that what a test started is gone, or says what is left and who keeps it.
package leakcheck
