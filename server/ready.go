package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// check asks a server whether it is ready.
type check struct {
	name  string
	probe func(ctx context.Context, s *Server) error
}

// ReadyHTTP waits until a GET of path answers 200. Several Ready options are checked in turn; they
// replace the protocol's own.
func ReadyHTTP(path string) Option {
	return readiness(check{"GET " + path, func(ctx context.Context, s *Server) error {
		return s.client.health(ctx, path, func(status int) bool { return status == http.StatusOK })
	}})
}

// ReadyTCP waits until the port accepts connections.
func ReadyTCP() Option {
	return readiness(check{"TCP connection", func(ctx context.Context, s *Server) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			return err
		}
		return c.Close()
	}})
}

// ReadyLog waits until the server prints a line that matches the regular expression; it panics when
// that does not compile. When the first group of the expression matches a port, or an address that
// ends in one, the server is asked there: so a server may choose its port itself.
func ReadyLog(expr string) Option {
	re := regexp.MustCompile(expr)
	return readiness(check{"log line " + strconv.Quote(expr), func(_ context.Context, s *Server) error {
		for _, l := range s.proc.log.Tail(0) {
			if m := re.FindStringSubmatch(l.Text); m != nil {
				return s.announced(m)
			}
		}
		return fmt.Errorf("no such line yet")
	}})
}

// ReadyFunc waits until f returns nil. It is called again and again.
func ReadyFunc(f func(ctx context.Context, s *Server) error) Option {
	return readiness(check{"the test's own function", f})
}

func readiness(c check) Option { return option(func(cfg *config) { cfg.ready = append(cfg.ready, c) }) }

// announced takes the port from a line in which the server announces it.
func (s *Server) announced(match []string) error {
	if len(match) < 2 || s.url != "" {
		return nil
	}
	text := match[1][strings.LastIndexByte(match[1], ':')+1:]
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%q in the line %q is no port", match[1], match[0])
	}
	s.proc.port = int(port)
	s.url = s.proc.url()
	s.client.base = s.url
	return nil
}

// health is the check of a protocol: path answers with a status that the protocol takes for ready.
func (a *api) health() check {
	return check{"GET " + a.healthPath, func(ctx context.Context, s *Server) error {
		return s.client.health(ctx, a.healthPath, func(status int) bool {
			return status < http.StatusInternalServerError && (status < 300 || a.anyHealth)
		})
	}}
}
