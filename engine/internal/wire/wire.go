// Package wire carries Go values between two processes that run the same binary.
//
// A frame is a length (4 bytes, big endian, of what follows), a version (1 byte) and a value. Both
// ends have the same types, so values need no description: fields in order, numbers as varints.
// They come out as they went in: a nil slice is nil and an empty one empty, a pointer to zero is
// one, NaN is NaN. (encoding/gob and encoding/json each lose some of these, and a request means
// something else without them.)
//
// What it prints when it fails:
//
//	wire: 1288490188 bytes in one message, at most 1073741824
//	wire: a message of version 2, this side speaks 1
//	wire: damaged message: 12 bytes missing
//	wire: a chan int cannot be sent
package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	version = 1
	header  = 5
	keep    = 1 << 20 // a larger buffer is not kept for the next message
)

// TooBigError is a message that no frame can hold. Nothing of it was sent, and the connection is as
// good as before.
type TooBigError struct{ Size, Limit int }

func (e *TooBigError) Error() string {
	return fmt.Sprintf("wire: %d bytes in one message, at most %d", e.Size, e.Limit)
}

// Conn sends and receives values. Any number of goroutines may Send; one may Recv.
type Conn struct {
	rw    io.ReadWriteCloser
	r     *bufio.Reader
	Limit int           // bytes in one message; set before use; 1 GiB by default
	Stall time.Duration // Send fails when the other side has read nothing for so long; 0: it waits
	mu    sync.Mutex
	out   []byte
	in    []byte
}

// New makes a Conn of a stream.
func New(rw io.ReadWriteCloser) *Conn {
	return &Conn{rw: rw, r: bufio.NewReaderSize(rw, 64<<10), Limit: 1 << 30}
}

// Close closes the stream.
func (c *Conn) Close() error { return c.rw.Close() }

// Send writes the value that v points to, in one write. An error of the codec or a [*TooBigError]
// leaves the connection usable.
func (c *Conn) Send(v any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := Append(append(c.out[:0], make([]byte, header)...), v)
	if err != nil {
		return err
	}
	if len(b)-header > c.Limit {
		return &TooBigError{len(b) - header, c.Limit}
	}
	if c.out = b[:0]; cap(b) > keep {
		c.out = nil
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-header+1))
	b[header-1] = version
	if w, ok := c.rw.(interface{ SetWriteDeadline(t time.Time) error }); ok && c.Stall > 0 {
		_ = w.SetWriteDeadline(time.Now().Add(c.Stall))
	}
	_, err = c.rw.Write(b)
	return err
}

// Recv reads the next value into the one that v points to. [io.EOF] says that the other side has
// closed.
func (c *Conn) Recv(v any) error {
	var head [header]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return err
	}
	if head[header-1] != version {
		return fmt.Errorf("wire: a message of version %d, this side speaks %d", head[header-1], version)
	}
	n := int(binary.BigEndian.Uint32(head[:])) - 1
	if n < 0 || n > c.Limit {
		return &TooBigError{n, c.Limit}
	}
	if cap(c.in) < n {
		c.in = make([]byte, n)
	}
	b := c.in[:n]
	if n > keep {
		c.in = nil
	}
	if _, err := io.ReadFull(c.r, b); err != nil {
		return fmt.Errorf("wire: a message of %d bytes was cut: %w", n, io.ErrUnexpectedEOF)
	}
	return Decode(b, v)
}
