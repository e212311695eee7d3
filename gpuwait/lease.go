package gpuwait

import "time"

// Lessee says who holds a lease; it is the line in the lock file.
type Lessee struct {
	PID   int       `json:"pid"`
	Name  string    `json:"name"` // the test, or the program
	Since time.Time `json:"since"`
	Files []int     `json:"held_by,omitempty"`
}

func (l *Lessee) String() string { return l.Name }

func (l *Lessee) covers(pid int) bool { return l.PID == pid }

func leaseOn(dir, uuid string) (*Lessee, error) { return nil, nil }
