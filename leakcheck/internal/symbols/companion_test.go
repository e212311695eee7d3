package symbols

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWithSymbols(t *testing.T) {
	for flags, want := range map[string]string{
		"":                         "",
		"-s -w":                    "-a -n",
		"-w -s  -s":                "-n -a  -a",
		"-s=true -X main.v=1 --w":  "-a=true -X main.v=1 --n",
		"-X main.v=-s":             "-X main.v=-s",
		"-extldflags=-static -w":   "-extldflags=-static -n",
		"-w=false -X 'a.b=its -x'": "-w=false -X 'a.b=its -x'",
	} {
		assert.Equal(t, want, withSymbols(flags), flags)
	}
}
