package report

import (
	"fmt"
	"strings"
)

// The parts of a test's output that are kept: why it failed is at its end, what it was about at its
// begin.
const (
	keepHead = 16 << 10
	keepTail = 48 << 10
)

// log keeps the head and the tail of a text.
type log struct {
	head, tail []byte
	dropped    int
}

func (l *log) add(line string) {
	if len(l.tail) == 0 && l.dropped == 0 && len(l.head)+len(line) <= keepHead {
		l.head = append(l.head, line...)
		return
	}
	l.tail = append(l.tail, line...)
	if len(l.tail) > 2*keepTail {
		l.trim()
	}
}

func (l *log) trim() {
	if over := len(l.tail) - keepTail; over > 0 {
		l.dropped += over
		l.tail = append([]byte(nil), l.tail[over:]...)
	}
}

func (l *log) String() string {
	l.trim()
	if l.dropped == 0 {
		return string(l.head) + string(l.tail)
	}
	tail := strings.ToValidUTF8(string(l.tail), "")
	return fmt.Sprintf("%s\n… %d bytes left out …\n%s", l.head, l.dropped, tail)
}
