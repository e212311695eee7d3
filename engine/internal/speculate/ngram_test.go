package speculate

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		name        string
		text        []int32
		least, most int
		want        []int32
	}{
		{"what followed the last token", []int32{7, 8, 9, 7}, 1, 1, []int32{8, 9, 7}},
		{"the earliest copy", []int32{7, 1, 7, 2, 7}, 1, 1, []int32{1, 7, 2, 7}},
		{"the longest copy", []int32{7, 1, 5, 7, 2, 5, 7}, 1, 3, []int32{2, 5, 7}},
		{"no more than most are compared", []int32{7, 1, 5, 7, 2, 5, 7}, 1, 1, []int32{1, 5, 7, 2, 5, 7}},
		{"too short a copy", []int32{7, 1, 7}, 2, 3, nil},
		{"a run overlaps itself", []int32{4, 4, 4}, 1, 2, []int32{4}},
		{"nothing before", []int32{4}, 1, 2, nil},
	} {
		assert.Equal(t, c.want, lookup(c.text, c.least, c.most), c.name)
	}
}
