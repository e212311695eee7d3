package wire

import (
	"bytes"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type named int32

type everything struct {
	B     bool
	I     int
	I32   named
	U     uintptr
	F     float64
	G     float32
	S     string
	Bytes []byte
	Ints  []int32
	Deep  [][]string
	Map   map[int32]float64
	P     *int
	Q     *string
	Next  *everything
	Took  time.Duration
}

var someValue = rapid.Custom(func(t *rapid.T) everything { return draw(t, 2) })

func draw(t *rapid.T, depth int) everything {
	v := everything{
		B: rapid.Bool().Draw(t, "B"), I: rapid.Int().Draw(t, "I"), I32: named(rapid.Int32().Draw(t, "I32")),
		U: uintptr(rapid.Uint64().Draw(t, "U")),
		F: rapid.Float64().Draw(t, "F"), G: rapid.Float32().Draw(t, "G"),
		S:    string(rapid.SliceOf(rapid.Byte()).Draw(t, "S")),
		Took: time.Duration(rapid.Int64().Draw(t, "Took")),
	}
	some := func(name string) bool { return rapid.Bool().Draw(t, name) } // else it stays nil
	if some("Bytes?") {
		v.Bytes = append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "Bytes")...)
	}
	if some("Ints?") {
		v.Ints = append([]int32{}, rapid.SliceOf(rapid.Int32()).Draw(t, "Ints")...)
	}
	if some("Deep?") {
		v.Deep = [][]string{nil, {}, {"", "a"}}
	}
	if some("Map?") {
		v.Map = rapid.MapOf(rapid.Int32(), rapid.Float64()).Draw(t, "Map")
	}
	if some("P?") {
		v.P = new(int)
	}
	if some("Q?") {
		v.Q = new(string)
	}
	if depth > 0 && some("Next?") {
		next := draw(t, depth-1)
		v.Next = &next
	}
	return v
}

// What goes in comes out, nil and empty told apart.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := someValue.Draw(t, "in")
		b, err := Append(nil, &in)
		require.NoError(t, err)
		out := everything{I: 7, P: new(int), Map: map[int32]float64{1: 1}} // what was there before is gone
		require.NoError(t, Decode(b, &out))
		require.True(t, reflect.DeepEqual(in, out), "%#v\n%#v", in, out)
	})
	nan := everything{F: math.NaN(), G: float32(math.Inf(-1))}
	b, err := Append(nil, &nan)
	require.NoError(t, err)
	var out everything
	require.NoError(t, Decode(b, &out))
	assert.True(t, math.IsNaN(out.F))
	assert.True(t, math.IsInf(float64(out.G), -1))
}

// No damage panics or asks for more memory than came.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := someValue.Draw(t, "in")
		b, err := Append(nil, &in)
		require.NoError(t, err)
		var out everything
		assert.Error(t, Decode(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")], &out))
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "with")
		_ = Decode(b, &out)
		_ = Decode(rapid.SliceOf(rapid.Byte()).Draw(t, "noise"), &out)
	})
}

func TestWhatCannotCross(t *testing.T) {
	for want, v := range map[string]any{
		"wire: a chan int cannot be sent":                        &struct{ C chan int }{},
		"wire: a error cannot be sent":                           &struct{ E error }{io.EOF},
		"has the unexported field hidden":                        &struct{ hidden int }{},
		"wire: a []struct {} cannot be sent: its elements are e": &[]struct{}{{}},
	} {
		_, err := Append(nil, v)
		assert.ErrorContains(t, err, want)
	}
}

type stream struct{ bytes.Buffer }

func (*stream) Close() error { return nil }

func TestConn(t *testing.T) {
	s := &stream{}
	c := New(s)
	c.Limit = 100
	in, out := "hello", ""
	require.NoError(t, c.Send(&in))
	big := strings.Repeat("x", 100)
	var tooBig *TooBigError
	require.ErrorAs(t, c.Send(&big), &tooBig)
	assert.EqualError(t, tooBig, "wire: 101 bytes in one message, at most 100")
	require.Error(t, c.Send(&struct{ C chan int }{}))
	require.NoError(t, c.Send(&in), "neither has harmed the connection")
	for range 2 {
		require.NoError(t, c.Recv(&out))
		assert.Equal(t, in, out)
		out = ""
	}
	assert.Equal(t, io.EOF, c.Recv(&out))

	require.NoError(t, c.Send(&in))
	frame := bytes.Clone(s.Bytes())
	for name, row := range map[string]struct {
		damage func([]byte) []byte
		want   string
	}{
		"another version": {func(b []byte) []byte {
			b[4]++
			return b
		}, "wire: a message of version 2, this side speaks 1"},
		"cut": {func(b []byte) []byte {
			return b[:7]
		}, "wire: a message of 6 bytes was cut: unexpected EOF"},
		"cut head":  {func(b []byte) []byte { return b[:3] }, "unexpected EOF"},
		"too long":  {func(b []byte) []byte { b[1] = 1; return b }, "at most 100"},
		"no length": {func(b []byte) []byte { b[3] = 0; return b }, "at most 100"},
	} {
		bad := &stream{}
		bad.Write(row.damage(bytes.Clone(frame)))
		r := New(bad)
		r.Limit = 100
		assert.ErrorContains(t, r.Recv(&out), row.want, name)
	}
}

// BenchmarkStep is a message like that of one step of 32 streamed sequences, there and back in
// memory.
func BenchmarkStep(b *testing.B) {
	type delta struct {
		Index    int
		Tokens   []int32
		Text     string
		Logprobs [][]float32
		Reason   string
	}
	type update struct {
		Handle uint64
		Deltas []delta
		Over   bool
	}
	in := make([]update, 32)
	for i := range in {
		in[i] = update{uint64(i), []delta{{Tokens: []int32{int32(i * 1000)}, Text: " word"}}, false}
	}
	c := New(&stream{})
	for b.Loop() {
		var out []update
		if err := c.Send(&in); err != nil {
			b.Fatal(err)
		}
		if err := c.Recv(&out); err != nil {
			b.Fatal(err)
		}
	}
}
