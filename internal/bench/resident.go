package bench

import (
	"os"
	"strconv"
	"strings"
)

// residentMiB is the memory of this process that is in RAM; 0 where /proc does not say.
func residentMiB() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20)
}
