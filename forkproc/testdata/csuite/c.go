// Package csuite ends processes from C.
package csuite

/*
#cgo LDFLAGS: -Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files
#include <stdlib.h>
#include <unistd.h>
void no_such_function(void);
static void segv(void) { *(volatile int *)8 = 1; }
static void missing(void) { no_such_function(); }
*/
import "C"

func exit0()   { C.exit(0) }
func exitNow() { C._exit(0) }
func abort()   { C.abort() }
func segv()    { C.segv() }
func missing() { C.missing() }
